# 0.8M parameters at L = 128: for a first look at many schemes in a third of the default's time.
n_layer = 4
n_head = 4
n_embd = 128
