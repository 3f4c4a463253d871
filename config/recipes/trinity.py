# Trinity Mini (Arcee 2025, arXiv 2602.17004, transformers' afmoe): rope with a window of 2,048 in
# three layers, no positions and all keys in the fourth, gates on the head outputs. The window is
# from its config.json, the 4,096 tokens of pre-training from a list of models, both at second hand;
# the class's default is 1,024. Left out: experts, the second norm of each sublayer, the embedding
# scale, and an untied output layer.
pos = "gate + (3 * (rope + window(size=0.5)) | nope)"
norm = "rmsnorm"
mlp = "swiglu"
qk_norm = True
n_kv_head = 2  # theirs: 4 of 32
