# A small network of the distance, divided by the query's own place (Li et al. 2023): no input is ever out of range.
pos = "fire"
