# Products of input-dependent reflections between key and query (Yang et al. 2025).
pos = "path"
