# ALiBi with slopes computed from the keys (Zhang et al. 2025).
pos = "grape"
