# A learned bias per distance bucket (Raffel et al. 2019).
pos = "t5"
