# A learned kernel of the distance, corrected by a small MLP over the scores of all heads (Zheng et
# al. 2024).
pos = "kerple + dape"
