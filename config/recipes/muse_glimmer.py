# Muse Glimmer, 30B (Meta 2026, transformers' muse_glimmer): rope with a window of 2,048 in three
# layers, no positions and all keys in the fourth, gates on the head outputs. Base 500,000 is from
# its config.json, quoted at second hand; the class's default is 10,000. The length of its
# pre-training is not confirmed: the window's share, 2,048 of 8,192, is a choice. Left out: second
# norms, caps on logits, an untied output layer, and that only query norms have a weight, 3.87.
pos = "gate + (3 * (rope(base=500000) + window(size=0.25)) | nope)"
norm = "rmsnorm"
mlp = "swiglu"
qk_norm = True
embedding_norm = True
n_kv_head = 2  # theirs: 2 of 32
