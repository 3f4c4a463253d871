# Rope, and heads with the imaginary part of its product (RoPE++, 2025); theirs with n_kv_head = 2.
pos = "rope_pp"
