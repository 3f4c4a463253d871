# Press, Smith and Lewis 2022 (ALiBi), scaled down to 0.8M parameters and L = 128 for a CPU.
# The model shape is theirs: eight heads, an MLP of 4 times the width, test lengths at the same
# multiples of L. results/paper has their numbers and the rules:
# python ablate.py config/paper/alibi/scaled.py
# Models trained at 6 L, like their 3,072, are left out: with the same number of tokens, sinusoids
# learned less there than at L (one seed, three rates: results/paper). wikitext103.py has them.
schemes = (
    "sinusoidal --learning_rate=6e-3",  # rates picked for the board, results/board/first
    "rope",
    "t5 --learning_rate=6e-3",
    "alibi",
)
seeds = (1, 2, 3, 4, 5, 6, 7, 8)
dataset = "books"
n_layer = 4
n_head = 8
n_embd = 128
block_size = 128
batch_size = 24
max_iters = 800
optimizer = "adamw"
learning_rate = 3e-3
dtype = "bfloat16"
eval_lengths = (128, 256, 384, 640, 768, 896, 4096)
