# Half of RoPE's pairs; scores are scaled and shifted by distance, so that near and far texts of
# any scale get the same weight (Anson et al. 2025).
pos = "rope(p=0.5) + scale_invariant"
