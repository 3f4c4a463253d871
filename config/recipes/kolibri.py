# Kolibri 1 (Aleph Alpha 2026, transformers' kolibri1): rope with a window of 512 tokens and the
# token itself in four layers, no positions and all keys in the fifth. The length of its
# pre-training is not confirmed: the window's share, 512 of 8,192, is a choice. Left out: experts,
# the second norm of each sublayer, and an untied output layer. Put a size file before this one.
pos = "4 * (rope + window(size=0.0625)) | nope"
n_layer = 5
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
qk_norm = True
n_kv_head = 2  # theirs: 4 of 48
