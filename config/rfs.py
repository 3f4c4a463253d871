# RoPE trained on random real positions (Shimizu et al. 2026): randomized without a grid.
pos = "rfs + rope"
