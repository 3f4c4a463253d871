# RoPE with wavelengths of whole tokens, so that fast pairs repeat exactly (Wang et al. 2024).
pos = "resonance"
