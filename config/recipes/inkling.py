# Inkling (Thinking Machines 2026, transformers' inkling): a bias predicted from the query, no
# rotation, short convolutions; five layers with a window of 512, one with all keys, a bias up to
# 1,024 tokens, scores that grow from 128,000 on (config.json, at second hand). The length of its
# pre-training is not confirmed: L / 4, L / 2 and L in their place are a choice. Left out: experts,
# more key heads in windows, logit scale, untied output. Put a size file of 4 layers before this.
pos = "short_conv + (5 * (rel_proj(extent=0.25) + window(size=0.25)) | rel_proj(floor=1.0))"
n_layer = 6
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
qk_norm = True
embedding_norm = True
n_kv_head = 2  # theirs: 8 of 64
