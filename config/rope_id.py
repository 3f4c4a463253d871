# Rope on half of the columns, whose slowest pair turns twice within L (Wertheimer et al. 2026).
pos = "rope_id"
