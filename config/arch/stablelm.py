# The block of StableLM (Bellagente et al. 2024): Llama's MLP between LayerNorms, and a quarter of
# each head's columns turned.
mlp = "swiglu"
tie_embeddings = False
pos = "rope(fraction=0.25)"
