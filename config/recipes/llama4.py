# Llama 4 (Meta 2025): rope within chunks of 8,192 tokens in three layers, no positions, all keys
# and a temperature that grows by steps in the fourth. From transformers' llama4, where chunks and
# steps are 8,192: L here. Theirs turns columns that are neighbours, the same function of permuted
# columns. Left out: experts, the norm without weights of turned queries and keys, and an output
# layer that is not the embedding.
pos = "3 * (rope(base=500000) + chunks(size=1.0)) | nope + step_temperature(floor=1.0)"
norm = "rmsnorm"
mlp = "swiglu"
n_kv_head = 2  # theirs: 8 of 40
