# Sines and cosines of the position, added to the token embedding (Vaswani et al. 2017).
pos = "sinusoidal"
