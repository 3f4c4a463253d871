# Olmo 3 (Ai2 2025): a window in three layers of four; norms behind attention and MLP, and one over
# all heads of queries and one of keys. From transformers' olmo3: 4,096, base 500,000; the 8,192
# tokens of pre-training are from the paper, as others quote it. Left out: the YaRN that layers
# without a window get for longer texts, and an output layer that is not the embedding.
pos = "3 * (rope(base=500000) + window(size=0.5)) | rope(base=500000)"
norm = "rmsnorm"
norm_eps = 1e-6  # of the released models, as others quote them; 1e-5 by default
norm_place = "after"
mlp = "swiglu"
qk_norm = "all"
