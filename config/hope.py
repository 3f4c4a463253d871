# RoPE without the pairs that are too slow to complete a turn within L (Chen et al. 2024).
pos = "hope"
