# Flint (Recursive 2026, transformers' flint): rope with a window of 512 tokens and the token itself
# in three layers, no positions and all keys in the fourth, in the first two and in the last; a
# learned sink in each head. The length of its pre-training is not confirmed: the window's share,
# 512 of 8,192, is a choice. Left out: experts, and an untied output layer. The pattern is theirs
# with six layers alone (theirs does not repeat): put a size file before this one.
pos = "sink + (2 * nope | 3 * (rope + window(size=0.0625)) | nope)"
n_layer = 6
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
qk_norm = True
n_kv_head = 2  # theirs: 4 of 32
