# 0.8M parameters at L = 128: a third of the default's time, for a first look at many schemes.
n_layer = 4
n_head = 4
n_embd = 128
learning_rate = 3e-3
