# RoPE, with the direction of the token's own value removed from head outputs (Zhai 2026).
pos = "rope + xsa"
