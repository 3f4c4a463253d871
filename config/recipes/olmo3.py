# Olmo 3 (Ai2 2025, transformers' olmo3): a window of 4,096 in three layers of four, base 500,000;
# norms after attention and MLP, and QK norm over all heads at once. The 8,192 tokens of
# pre-training are from the paper, quoted at second hand. Left out: YaRN in the layers without a
# window for longer texts, and an untied output layer.
pos = "3 * (rope(base=500000) + window(size=0.5)) | rope(base=500000)"
norm = "rmsnorm"
norm_eps = 1e-6  # of the released models, as others quote them; 1e-5 by default
norm_place = "after"
mlp = "swiglu"
qk_norm = "all"
