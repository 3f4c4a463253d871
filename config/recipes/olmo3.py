# Olmo 3 (Ai2 2025): a window in three layers of four; norms after attention and MLP, and QK norm
# over all heads at once. From transformers' olmo3: 4,096, base 500,000; the 8,192 tokens of
# pre-training are from the paper, quoted at second hand. Left out: YaRN in the layers without a
# window for longer texts, and an untied output layer.
pos = "3 * (rope(base=500000) + window(size=0.5)) | rope(base=500000)"
norm = "rmsnorm"
norm_eps = 1e-6  # of the released models, as others quote them; 1e-5 by default
norm_place = "after"
mlp = "swiglu"
qk_norm = "all"
