# A small MLP of the distance divided by the query's position (Li et al. 2023), so that its inputs
# stay in the training range at any length.
pos = "fire"
