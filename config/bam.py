# Each head learns how scores fall, or rise, with the distance (Bianchessi et al. 2025).
pos = "bam + ssmax"
