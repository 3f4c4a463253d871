# Half of RoPE's pairs, scores scaled and shifted by distance so that every scale weighs alike (Anson et al. 2025).
pos = "rope(p=0.5) + scale_invariant"
