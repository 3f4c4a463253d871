# Command A+ (Cohere 2026, transformers' cohere2_moe): as RNoPE-SWA, a window of 4,096 of 8,192
# tokens, the class's defaults. Left out: experts, first layers with rope and all keys where their
# MLP is dense, the norm shared by attention and MLP, and the logit scale.
pos = "3 * (rope(layout=interleaved) + window(size=0.5)) | nope"
mlp = "swiglu"
parallel_blocks = True
n_kv_head = 2  # a choice; theirs: 64 of 64 by the class's default
