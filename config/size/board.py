# The board (results/board): 0.8M parameters without the names and values of the questions, L = 256,
# 14.7M tokens of books with questions in them, 25 minutes on one core. Make the corpus before:
# python data/books/prepare.py; python data/recall/prepare.py --text=books --longest=8192
dataset = "books_recall"
block_size = 256
batch_size = 16
n_layer = 4
n_head = 4
n_embd = 128
max_iters = 3600
eval_windows = 256
