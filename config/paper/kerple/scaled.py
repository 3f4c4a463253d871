# Chi et al. 2022 (KERPLE), scaled down to 0.8M parameters and L = 128 for a CPU. Not run
# yet:
# python ablate.py config/paper/kerple/scaled.py
schemes = (
    "kerple",
    "kerple(kind=power)",
    "alibi",
    "t5 --learning_rate=6e-3",  # rates picked for the board, results/board/first
    "rope",
    "sinusoidal --learning_rate=6e-3",
)
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
