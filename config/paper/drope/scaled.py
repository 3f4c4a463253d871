# DroPE, scaled down to 0.8M parameters and L = 128 for a CPU. results/paper has their
# numbers, the rules and the outcome:
# python ablate.py config/paper/drope/scaled.py
schemes = ("rope", "rope --drop_pos=0.13", "nope --learning_rate=1.5e-3")  # rates of the board
seeds = (1, 2, 3, 4, 5, 6, 7, 8)
dataset = "books"
n_layer = 4
n_head = 4
n_embd = 128
block_size = 128
optimizer = "adamw"
learning_rate = 3e-3
dtype = "bfloat16"
eval_lengths = (128, 256, 512, 1024, 2048, 4096)
