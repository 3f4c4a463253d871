# Olmo 3 (Ai2 2025): a window in three layers of four. From transformers' olmo3: 4,096, base
# 500,000; the 8,192 tokens of pre-training are from memory. Left out: norms behind attention and
# MLP instead of before them, and the norm over all heads of queries and of keys at once.
pos = "3 * (rope(base=500000) + window(size=0.5)) | rope(base=500000)"
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
qk_norm = True
