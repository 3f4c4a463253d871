# Ministral 3 (Mistral AI 2025, arXiv 2601.08584, transformers' ministral3): a temperature in all
# layers that grows in steps of 16,384 tokens, which is L here, and YaRN from there, by 16, without
# a temperature of its own; neither has an effect within L. The class's defaults. Left out: an
# untied output layer.
pos = "rope(base=1000000) + step_temperature(first=0)"
extend = "yarn(factor=auto, mscale=0.0)"
norm = "rmsnorm"
mlp = "swiglu"
n_kv_head = 2  # theirs: 8 of 32
