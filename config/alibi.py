# A penalty on the score that grows linearly with distance (Press et al. 2021): the classic that stays flat.
pos = "alibi"
