# RoPE with a softmax whose weights can be 0 (Zuhri et al. 2025).
pos = "rope + softpick"
