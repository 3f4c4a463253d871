# Gemma 4 (Google 2026, transformers' gemma4): as Gemma 3, with windows of 512, but the global
# layers rotate only the fastest quarter of their pairs (proportional, 0.25, base 1,000,000). The
# length of its pre-training is not confirmed: the window's share is Gemma 3's. Left out: the global
# layers' wider heads and fewer keys, scores without division by sqrt(d), the norm of values
# (without weights), the second norms, the MLP's gated GELU, the per-layer token embeddings, and the
# embedding scale. Put a size file of 4 layers before this one.
pos = "5 * (rope + window(size=0.03125)) | rope(base=1000000, p=0.25)"
n_layer = 6
norm = "rmsnorm"
norm_eps = 1e-6
qk_norm = True
n_kv_head = 2
