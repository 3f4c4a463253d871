# modded-nanogpt's main record (train_gpt.py, 2026): half of the columns rotated, base 1,024, three
# layers with a short window, one with a long one; at the end of its training 768 and 1,664 of 2,048
# tokens. Left out: the growing windows with YaRN, paired heads, shifted keys, its gates and XSA,
# value embeddings, the squared-ReLU MLP, logits as 23 sigmoid((z + 5) / 7.5), the score scale 0.1,
# its connections between layers, and the norms without weights, also of queries and keys. It has 11
# layers: the seventh has no attention, and the fourth and the last have the long window; here every
# fourth does. Its last frequency is 1 / base; here that would be the next one.
pos = (
    "3 * (rope(base=1024, fraction=0.5) + window(size=0.375)) | "
    "rope(base=1024, fraction=0.5) + window(size=0.8125)"
)
norm = "rmsnorm"
qk_norm = True
