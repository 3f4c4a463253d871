# A small network of the logarithm of the distance (Liu et al. 2021): Swin V2's continuous
# position bias.
pos = "cpb"
