# RoPE on half of the columns, with the slowest pair turning twice within L (Wertheimer et al.
# 2026).
pos = "rope_id"
