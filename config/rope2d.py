# Half of the pairs rotate with the row of a patch, half with its column (Heo et al. 2024). For
# images: --dataset=digits --block_size=144.
pos = "rope2d"
