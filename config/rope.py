# Queries and keys turned by angles that grow with the position (Su et al. 2021): most models of
# today use it.
pos = "rope"
