# Sinusoids of positions that are shifted, jittered and scaled in training (Likhomanenko et
# al. 2021).
pos = "cape"
