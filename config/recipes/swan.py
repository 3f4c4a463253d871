# SWAN-GPT (Puvvada et al. 2025, arXiv 2504.08719): no positions and all keys in one layer, then
# rope and a window of 512 tokens in three, at 8,192 tokens (sections 2 and 3, table 6). Of its
# temperature at test, log_a(a + n) at place n in the layers without positions, the a is not
# confirmed: logn stands for it, in all layers, which is 1 within L. Left out: the MLP, of which the
# paper says nothing.
pos = "nope | 3 * (rope(base=1000000) + window(size=0.0625))"
extend = "logn"
norm = "rmsnorm"
