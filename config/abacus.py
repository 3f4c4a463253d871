# Each digit gets an embedding of its place in its number (McLeish et al. 2024), with RoPE: for
# arithmetic.
pos = "abacus + rope"
