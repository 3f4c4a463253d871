# The block of BLOOM (Le Scao et al. 2022): ALiBi, and a norm behind the embedding.
bias = True
embedding_norm = True
pos = "alibi"
