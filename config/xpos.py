# RoPE whose pairs decay with distance, with the mask its authors test it with (Sun et al. 2022).
pos = "xpos + block_causal"
