# Latent attention (DeepSeek-AI 2024) in Llama's block: one latent for each token makes the keys
# and values of all heads, and positions turn 16 columns that all heads share. With a scheme that
# turns nothing, such as alibi, say --qk_rope_head_dim=0.
norm = "rmsnorm"
mlp = "swiglu"
kv_lora_rank = 64
qk_rope_head_dim = 16
tie_embeddings = False
pos = "rope(layout=interleaved)"
