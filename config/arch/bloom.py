# The block of BLOOM (Le Scao et al. 2022), whose scheme is alibi: a norm after the embedding.
bias = True
embedding_norm = True
