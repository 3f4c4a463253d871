# 10.7M parameters at L = 256 on 10M tokens, the shape of nanoGPT's baby GPT: hours on a laptop.
n_layer = 6
n_head = 6
n_embd = 384
block_size = 256
batch_size = 16
max_iters = 2442
learning_rate = 1e-3
