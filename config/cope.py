# Positions that depend on context: gates decide which tokens count as a step (Golovneva et al.
# 2024).
pos = "cope"
