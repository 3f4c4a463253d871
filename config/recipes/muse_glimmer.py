# Muse Glimmer, 30B (Meta 2026, transformers' muse_glimmer): rope with a window of 2,048 in three
# layers, no positions and all keys in the fourth, gates on the head outputs. Base 500,000 is from
# its config.json, quoted at second hand; the class's default is 10,000. The length of its
# pre-training is not confirmed: the window's share, 2,048 of 8,192, is a choice. Left out: the
# second norm of each sublayer, caps on logits, and an untied output layer; its query norm has no
# weights but the constant 3.87, that of keys and the embedding's none.
pos = "3 * (rope(base=500000) + window(size=0.25) + gate) | nope + gate"
norm = "rmsnorm"
mlp = "swiglu"
qk_norm = True
embedding_norm = True
n_kv_head = 2  # theirs: 2 of 32
