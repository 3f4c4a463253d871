# RoPE with frequencies learned for each head: does it choose others?
pos = "learned_rope"
