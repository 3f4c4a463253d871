# Granite SWASH, 2B (IBM 2026, transformers' granite_swa): all keys in the first of four layers, a
# window of 128 in the other three, a learned sink in each head, one base: the class's defaults. The
# length of its pre-training is not confirmed: the window's share, 128 of 8,192, is a choice. Left
# out: the scale of scores (1 by the class's default), and those of embeddings, branches and logits.
pos = "sink + (rope | 3 * (rope + window(size=0.015625)))"
norm = "rmsnorm"
mlp = "swiglu"
n_kv_head = 2  # theirs: 4 of 20
