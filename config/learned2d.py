# A learned vector for each patch of an image, resized for other image sizes (Dosovitskiy et al.
# 2020). For images: --dataset=digits --block_size=144.
pos = "learned2d"
