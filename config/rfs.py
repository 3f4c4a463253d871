# RoPE trained on random real positions (Shimizu et al. 2026), where randomized draws integers.
pos = "rfs + rope"
