# The block of GPT-NeoX and Pythia (Black et al. 2022): attention and MLP side by side, and a
# quarter of each head's columns turned.
bias = True
mlp = "gelu_exact"
parallel_blocks = True
tie_embeddings = False
pos = "rope(fraction=0.25)"
