# Each digit knows its place in its number (McLeish et al. 2024), with RoPE: for arithmetic.
pos = "abacus + rope"
