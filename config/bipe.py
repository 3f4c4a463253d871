# The place in the sentence, and rotations by the number of the sentence (He et al. 2024).
pos = "bipe"
