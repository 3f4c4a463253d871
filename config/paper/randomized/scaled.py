# Ruoss et al. 2023 (randomized positions) on one of their tasks, reverse, with 0.8M parameters.
# results/paper has the rules and the outcome:
# python ablate.py config/paper/randomized/scaled.py
schemes = ("randomized(max=512) + rope", "rope")
seeds = (4, 5, 6, 7, 8, 9, 10, 11)
dataset = "reverse"
n_layer = 4
n_head = 4
n_embd = 128
block_size = 41
batch_size = 64
max_iters = 2400
optimizer = "adamw"
learning_rate = 2e-3
dtype = "bfloat16"
