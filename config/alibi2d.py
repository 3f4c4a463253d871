# A penalty on the score that grows with the distance of two patches in the image (Fuller et
# al. 2023). For images: --dataset=digits --block_size=144.
pos = "alibi2d"
