# Muse Spark (Meta 2026, transformers' muse_spark): as Muse Glimmer, with base 500,000 by the
# class's default, and the constant 5.47. It also normalises each head's output before the gate,
# without weights, which cannot be said here. The length of its pre-training is not confirmed: the
# window's share is a choice. Left out: that norm, experts, the second norms, gates on the residual
# stream, caps on logits, and an untied output layer.
pos = "3 * (rope(base=500000) + window(size=0.25) + gate) | nope + gate"
norm = "rmsnorm"
mlp = "swiglu"
qk_norm = True
embedding_norm = True
n_kv_head = 2  # theirs: 16 of 128
