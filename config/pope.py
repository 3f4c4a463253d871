# Content sets the magnitudes of queries and keys, position their phases (Gopalakrishnan et al.
# 2025).
pos = "pope"
