# RNoPE-SWA (Yang et al. 2025, arXiv 2501.18795; Cohere's Command A and R7B): rope with a window in
# three layers, no positions and all keys in the fourth. From transformers' cohere2: a window of
# 4,096 at 8,192 tokens. Left out: the norm shared by attention and MLP, and the logit scale.
pos = "3 * (rope(layout=interleaved) + window(size=0.5)) | nope"
mlp = "swiglu"
parallel_blocks = True
n_kv_head = 2
