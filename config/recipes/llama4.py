# Llama 4 (Meta 2025, transformers' llama4): rope within chunks of 8,192 tokens in three layers, no
# positions, all keys and a temperature that grows in steps of 8,192 in the fourth; 8,192 is L here.
# Theirs rotates adjacent columns, the same function with permuted columns. Left out: experts, the
# norm (without weights) of rotated queries and keys, and an untied output layer.
pos = "3 * (rope(base=500000) + chunks(size=1.0)) | nope + step_temperature(floor=1.0)"
norm = "rmsnorm"
mlp = "swiglu"
n_kv_head = 2  # theirs: 8 of 40
