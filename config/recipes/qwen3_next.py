# The full-attention layers of Qwen3-Next (Qwen 2025, transformers' qwen3_next): a quarter of the
# columns rotated, a gate on the head outputs. Base 10,000,000 is that of the released model, from
# THUDM/slime's settings. Left out: the three linear layers (Gated DeltaNet) before each, experts,
# and an untied output layer.
pos = "rope(base=10000000, fraction=0.25) + gate"
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
qk_norm = True
n_kv_head = 2
