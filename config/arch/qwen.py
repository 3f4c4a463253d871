# The block of Qwen3 (Yang et al. 2025), whose scheme is rope(base=1000000): Llama's, with QK norm
# per head.
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
n_kv_head = 2  # a half of the usual n_head = 4
qk_norm = True
