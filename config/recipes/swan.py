# SWAN-GPT (Puvvada et al. 2025, arXiv 2504.08719): no positions and all keys in one layer, then
# rope and a window of 512 tokens in three, at 8,192 tokens (sections 2 and 3, table 6). Its scores
# at test are multiplied by log_a(a + n) at position n, in the layers without positions; a is not
# confirmed, so logn, which is 1 within L, replaces it there. Left out: the MLP, which the paper
# does not describe.
pos = "nope | 3 * (rope(base=1000000) + window(size=0.0625))"
extend = "logn | 3 * none"
norm = "rmsnorm"
