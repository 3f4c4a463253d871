# RoPE with angles accumulated from steps computed from the tokens (Movahedi et al. 2025).
pos = "selective_rope"
