# RoPE trained on sorted random positions below 4096 = 32 x the default training length (Ruoss
# et al. 2023).
pos = "randomized(max=4096) + rope"
