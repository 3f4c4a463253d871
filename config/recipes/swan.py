# SWAN-GPT (Puvvada et al. 2025, arXiv 2504.08719): no positions and all keys in one layer, then
# rope and a window of 512 tokens in three, at 8,192 tokens (sections 2 and 3, table 6). The a of
# its test temperature is not confirmed: logn replaces it, in all layers, which is 1 within L. That
# is log_a(a + n) at position n, in the layers without positions. Left out: the MLP, which the paper
# does not describe.
pos = "nope | 3 * (rope(base=1000000) + window(size=0.0625))"
extend = "logn"
norm = "rmsnorm"
