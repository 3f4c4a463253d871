# A learned kernel of the distance (Chi et al. 2022). Its code, zoo/kerple.py, is an example for
# your own.
pos = "kerple"
