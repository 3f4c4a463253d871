# The default 0.8M parameters with a third of the steps: for a first look at many schemes.
n_layer = 4
n_head = 4
n_embd = 128
max_iters = 500
