# RoPE whose frequencies are learned, separately in each head.
pos = "learned_rope"
