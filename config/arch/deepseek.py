# Latent attention (DeepSeek-AI 2024) in Llama's block: one latent for each token makes the keys
# and values of all heads, and positions turn 16 columns that all heads share (the scheme there is
# rope(layout=interleaved)). With a scheme that turns nothing, such as alibi, these columns may go:
# --qk_rope_head_dim=0.
norm = "rmsnorm"
mlp = "swiglu"
kv_lora_rank = 64
qk_rope_head_dim = 16
tie_embeddings = False
