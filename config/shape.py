# Sinusoids shifted by a random offset in training (Kiyono et al. 2021), so that the model cannot
# learn absolute positions.
pos = "shape + sinusoidal"
