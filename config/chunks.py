# RoPE within chunks of half the training length in three of four layers; the fourth sees all keys
# (Llama 4, 2025).
pos = "3 * (rope + chunks(size=0.5)) | nope"
