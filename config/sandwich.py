# The inner product of sinusoids as a bias (Chi et al. 2022). Nothing is learned; it falls roughly
# like a logarithm.
pos = "sandwich"
