# A penalty on the score that grows linearly with distance (Press et al. 2021).
# The best known scheme whose loss stays flat on longer texts.
pos = "alibi"
