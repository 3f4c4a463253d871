# A penalty on the score that grows linearly with distance (Press et al. 2021).
# Its loss stays flat on longer texts (results/stdlib-six).
pos = "alibi"
