# SmolLM3 (Hugging Face 2025, transformers' smollm3): every fourth layer without positions
# (no_rope_layers), default base 2,000,000; its pre-training began with a smaller base.
pos = "3 * rope(base=2000000) | nope"
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
n_kv_head = 2  # theirs: 4 of 16
