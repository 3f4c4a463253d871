# Queries and keys turned by angles that grow with the position (Su et al. 2021): the default of today's models.
pos = "rope"
