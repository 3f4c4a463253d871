# RoPE with gates on the head outputs (Qiu et al. 2025).
pos = "rope + gate"
