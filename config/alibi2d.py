# A penalty on the score that grows with the distance between two patches of an image (Fuller et al.
# 2023). For images: --dataset=digits --block_size=144.
pos = "alibi2d"
