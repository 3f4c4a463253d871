# RoPE without the wavelengths that training never completes, the others mixed (Hua et al. 2024).
pos = "fope"
