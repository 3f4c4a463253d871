# A learned kernel of the distance, refined by what the heads see in each pair (Zheng et al. 2024).
pos = "kerple + dape"
