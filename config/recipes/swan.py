# SWAN-GPT (Puvvada et al. 2025, arXiv 2504.08719): windowed rope and layers without positions in
# turn; scores grow with the logarithm of the length at test. Known here from its abstract: the
# window's share, the order of the layers and the exact scaling, for which logn stands, are not
# confirmed.
pos = "rope + window(size=0.125) | nope"
extend = "logn"
