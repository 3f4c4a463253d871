# Gemma 4 (Google 2026): as Gemma 3, but the layers that see all keys turn the fastest quarter of
# their pairs alone. From transformers' gemma4: a window of 512, proportional, 0.25, base 1,000,000.
# The length of its pre-training is not confirmed: the window's share is Gemma 3's. Left out: the
# wider heads and fewer keys of these layers, scores that are not divided by the root of the head's
# width, the norm without weights of values, the second norms, the gated GELU of the MLP, the
# vectors that each layer adds for its tokens, and the scale of the embedding. A size file stands
# behind this one, not before it.
pos = "5 * (rope + window(size=0.03125)) | rope(base=1000000, p=0.25)"
n_layer = 6
norm = "rmsnorm"
norm_eps = 1e-6
qk_norm = True
n_kv_head = 2
