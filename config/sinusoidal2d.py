# Sines and cosines of the row and column of a patch (Chen et al. 2021). For images:
# --dataset=digits --block_size=144.
pos = "sinusoidal2d"
