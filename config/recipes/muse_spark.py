# Muse Spark (Meta 2026, transformers' muse_spark): as Muse Glimmer, with base 500,000 by the
# class's default and the weight 5.47; theirs counts from the last layer, the same where n_layer is
# a multiple of 4. The window's share is a choice. Left out: the norm of each head's output before
# its gate, which cannot be said here, experts, gates on the residual stream, and as Muse Glimmer.
pos = "gate + (3 * (rope(base=500000) + window(size=0.25)) | nope)"
norm = "rmsnorm"
mlp = "swiglu"
qk_norm = True
embedding_norm = True
n_kv_head = 2  # theirs: 16 of 128
