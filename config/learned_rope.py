# RoPE whose frequencies are learned, separately in each head (Heo et al. 2024).
pos = "learned_rope"
