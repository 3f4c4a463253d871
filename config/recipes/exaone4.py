# EXAONE 4.0, 32B (LG 2025, arXiv 2507.11407, transformers' exaone4): rope with a window of 4,096 in
# three layers, no positions and all keys in the fourth; norms after attention and MLP. The base,
# and the 8,192 tokens from which it extends, are from its config.json, quoted at second hand; its
# report begins with 4,096 tokens. Left out: Llama 3's frequencies for longer texts, and an untied
# output layer.
pos = "3 * (rope(base=1000000) + window(size=0.5)) | nope"
norm = "rmsnorm"
norm_place = "after"
mlp = "swiglu"
qk_norm = True
n_kv_head = 2  # theirs: 8 of 40
