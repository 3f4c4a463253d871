# Sinusoids that are shifted by a random offset in training (Kiyono et al. 2021).
# The model cannot learn absolute positions then.
pos = "shape + sinusoidal"
