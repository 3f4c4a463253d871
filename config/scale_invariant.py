# Half of RoPE's pairs; scores are scaled and shifted by distance, so that keys 100 to 1,000
# tokens back weigh about as much as those 1,000 to 10,000 back (Anson et al. 2025). At L = 128 two
# of these pairs turn less than once, and the loss breaks; with p=0.25 it does not (results/board).
pos = "rope(p=0.5) + scale_invariant"
