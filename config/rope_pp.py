# RoPE, with the imaginary part in half of the heads (RoPE++, 2025); theirs has n_kv_head = 2.
pos = "rope_pp"
