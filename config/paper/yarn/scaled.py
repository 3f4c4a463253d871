# Chen et al. 2023 (PI) and Peng et al. 2023 (YaRN), scaled down to 0.8M parameters and L = 128.
# run.sh makes all of it: these runs, their fine-tunes, the extensions of both. results/paper has
# their numbers, the rules, and ours.
schemes = ("rope",)
seeds = (1, 2, 3, 4, 5, 6, 7, 8)
dataset = "books"
n_layer = 4
n_head = 4
n_embd = 128
block_size = 128
optimizer = "adamw"
learning_rate = 3e-3
dtype = "bfloat16"
eval_lengths = (128, 256, 320, 512, 1024)
