# Each head learns how scores fall, or rise, with distance (Bianchessi et al. 2025).
pos = "bam + ssmax"
