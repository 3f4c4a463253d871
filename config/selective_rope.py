# RoPE whose angles are sums of steps computed from the tokens (Movahedi et al. 2025).
pos = "selective_rope"
