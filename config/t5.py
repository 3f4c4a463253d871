# A learned bias per bucket of distance (Raffel et al. 2019).
pos = "t5"
