# The block of Llama (Touvron et al. 2023), SmolLM and TinyLlama: RMSNorm, SwiGLU, keys and values
# shared by two query heads each, an untied output layer.
norm = "rmsnorm"
mlp = "swiglu"
n_kv_head = 2  # a half of the usual n_head = 4
tie_embeddings = False
