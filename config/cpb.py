# A small MLP of the log distance (Liu et al. 2021): Swin V2's continuous position bias.
pos = "cpb"
