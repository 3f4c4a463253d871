# MiMo-V2-Flash (Xiaomi 2026, arXiv 2601.02780, transformers' mimo_v2_flash): base 5,000,000 and all
# keys in the first and every sixth layer (theirs with six layers alone), else base 10,000, a window
# of 128 tokens and learned sinks; a third of the columns rotated: whole pairs in heads of 32, not
# of 16 or 64. At L = 128 the window's share of its 32,768 tokens would be half a token: 128 of
# 8,192 is a choice. Left out: twice the key and value heads in windows, narrower values, times
# 0.707, experts, an untied output layer. Put a size file before this one.
pos = (
    "rope(base=5000000, fraction=0.334) | 4 * (rope(fraction=0.334) + window(size=0.015625) + sink)"
    " | rope(base=5000000, fraction=0.334)"
)
n_layer = 6
norm = "rmsnorm"
mlp = "swiglu"
n_kv_head = 2  # theirs: 4 of 64
