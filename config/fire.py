# A small network of the distance divided by the query's position (Li et al. 2023).
# Its inputs stay in the range of the training at any length.
pos = "fire"
