# What in magnitudes, where in phases (Gopalakrishnan et al. 2025).
pos = "pope"
