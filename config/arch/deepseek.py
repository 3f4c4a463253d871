# Latent attention (DeepSeek-AI 2024) in Llama's block: one latent per token gives the keys and
# values of all heads, and 16 columns shared by all heads are rotated (its scheme is
# rope(layout=interleaved)). With a scheme without rotation, such as alibi, these columns can be
# dropped: --qk_rope_head_dim=0.
norm = "rmsnorm"
mlp = "swiglu"
kv_lora_rank = 64
qk_rope_head_dim = 16
tie_embeddings = False
