# gpt-oss (OpenAI 2025, transformers' gpt_oss): a window of 128 tokens in every second layer,
# windows first, base 150,000, a learned sink in each head, YaRN from 4,096 tokens, which has no
# effect at L. Left out: experts, the clamped SwiGLU, and an untied output layer.
pos = "rope(base=150000) + window(size=0.03125) + sink | rope(base=150000) + sink"
extend = "yarn(factor=auto, truncate=False)"
bias = True
norm = "rmsnorm"
mlp = "swiglu"
n_kv_head = 2  # theirs: 8 of 64
