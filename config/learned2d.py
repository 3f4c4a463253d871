# A trained vector for each row and column of an image, resized for other sides (Dosovitskiy et
# al. 2020). For images: --dataset=digits --block_size=144.
pos = "learned2d"
