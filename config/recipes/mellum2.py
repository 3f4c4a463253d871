# Mellum 2 (JetBrains 2026, arXiv 2605.31268, transformers' mellum): a window of 1,024 of its 8,192
# tokens in three layers of four. The pattern and the base are from its config.json, quoted at
# second hand; by the class's default all layers see all keys, and windows have base 10,000. Left
# out: YaRN in the layers without a window, experts, and an untied output layer.
pos = "3 * (rope(base=500000) + window(size=0.125)) | rope(base=500000)"
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
qk_norm = True
n_kv_head = 2  # theirs: 4 of 32
