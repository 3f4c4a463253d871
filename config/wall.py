# Queries and keys whose every channel decays with the text (Tilde Research 2026).
pos = "wall"
