# RoPE; a query sees its own and the previous block of half the training length, the mask used to
# test xPos (Sun et al. 2022).
pos = "rope + block_causal"
