# A learned bias for each distance up to half the training length (after Shaw et al. 2018): T5
# without buckets.
pos = "relative"
