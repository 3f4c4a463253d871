# RoPE with attention to the own and the previous block of half the training length, as xPos is tested (Sun et al. 2022).
pos = "rope + block_causal"
