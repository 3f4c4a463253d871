# The block of StableLM (Bellagente et al. 2024), whose scheme is rope(fraction=0.25): Llama's MLP
# between LayerNorms.
mlp = "swiglu"
tie_embeddings = False
