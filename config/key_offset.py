# Half of each key is that of the token before, as in modded-nanogpt (2025).
pos = "rope(fraction=0.5) + key_offset"
