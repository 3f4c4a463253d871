# RoPE with 1.5-entmax in place of the softmax: many weights are 0 (Peters et al. 2019).
pos = "rope + entmax15"
