# Laguna XS.2 (Poolside 2026, transformers' laguna): one layer with base 500,000, half of the
# columns rotated and all keys, then three with base 10,000 and a window of 512; a softplus gate in
# each head. The pattern, and the 4,096 tokens from which its YaRN counts, are from its config.json,
# quoted at second hand; by the class's default all layers see all keys. Left out: YaRN in the
# layers without a window, their fewer query heads, experts, and an untied output layer.
pos = (
    "gate(kind=head, by=softplus) + "
    "(rope(base=500000, fraction=0.5) | 3 * (rope + window(size=0.125)))"
)
norm = "rmsnorm"
norm_eps = 1e-6
mlp = "swiglu"
qk_norm = True
n_kv_head = 2  # theirs: 8 of 48
