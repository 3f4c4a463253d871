# ALiBi whose slopes follow from each key (Zhang et al. 2025).
pos = "grape"
