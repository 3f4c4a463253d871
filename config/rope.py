# Queries and keys rotated by angles proportional to the position (Su et al. 2021), as in most
# current models.
pos = "rope"
