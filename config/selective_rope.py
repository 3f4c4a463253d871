# RoPE whose angles are sums of steps that the tokens choose: rotation by content.
pos = "selective_rope"
