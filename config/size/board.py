# The board (results/board): 0.8M parameters without the names and values of the questions, L = 128,
# 9.8M tokens of books with questions in them, 8 to 17 minutes on one core. Make the corpus before:
# python data/books/prepare.py; python data/recall/prepare.py --text=books
dataset = "books_recall"
block_size = 128
batch_size = 32
n_layer = 4
n_head = 4
n_embd = 128
max_iters = 2400
optimizer = "muon"  # that of the published table; the default is newer
eval_windows = 256
