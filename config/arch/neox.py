# The block of GPT-NeoX and Pythia (Black et al. 2022), whose scheme is rope(fraction=0.25):
# attention and MLP in parallel.
bias = True
mlp = "gelu_exact"
parallel_blocks = True
tie_embeddings = False
