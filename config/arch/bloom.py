# The block of BLOOM (Le Scao et al. 2022), whose scheme is alibi: a norm behind the embedding.
bias = True
embedding_norm = True
