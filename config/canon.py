# No positions but short convolutions over four tokens (Allen-Zhu 2025).
pos = "nope + canon"
