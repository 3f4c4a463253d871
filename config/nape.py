# Half of the heads without positions, half with steep ALiBi slopes (Vasylenko et al. 2025).
pos = "nape"
