# Sinusoids that are shifted by a random offset in training (Kiyono et al. 2021): nothing can be learned of absolute places.
pos = "shape + sinusoidal"
