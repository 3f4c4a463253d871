# Gemma 3 (Google 2025, arXiv 2503.19786): five layers with base 10,000 and a window, one with base
# 1,000,000 and all keys; queries and keys normalised. From transformers' gemma3; the window of
# 1,024 and the 32,768 tokens of pre-training are from the report, quoted at second hand. Left out:
# interpolation by 8 in the global layers for longer texts, the second norm of each sublayer, the
# MLP's gated GELU, and the embedding scale. The pattern has 6 layers: put a size file
# of 4 before this one.
pos = "5 * (rope + window(size=0.03125)) | rope(base=1000000)"
n_layer = 6
norm = "rmsnorm"
norm_eps = 1e-6
qk_norm = True
n_kv_head = 2
