# Kazemnejad et al. 2023 (NoPE) on one of their tasks, reverse, with 0.8M parameters. results/paper
# has their numbers and the rules. Learned positions are undefined beyond L: no rule needs them,
# so they were left out before the runs (seeds 1 to 3, with learned, are in results/length):
# python ablate.py config/paper/nope/scaled.py
schemes = ("nope", "t5", "alibi", "rope")
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
