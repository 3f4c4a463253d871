# RoPE; a query sees its own and the previous block of half the training length.
# xPos is tested with this mask (Sun et al. 2022).
pos = "rope + block_causal"
