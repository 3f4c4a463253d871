# The inner product of sinusoids as a bias (Chi et al. 2022): nothing learned, falling roughly
# as a logarithm.
pos = "sandwich"
