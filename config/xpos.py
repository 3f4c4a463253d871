# RoPE with pairs that decay with distance, and the mask its authors test it with (Sun et al. 2022).
pos = "xpos + block_causal"
