# RoPE with a different range for each head, from 8 to 128 tokens at the default length (Xu et al.
# 2025).
pos = "rope + multiscale"
