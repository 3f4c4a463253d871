# RoPE without the wavelengths that never complete a turn in training, and with the others mixed
# (Hua et al. 2024).
pos = "fope"
