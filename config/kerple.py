# A learned kernel of the distance (Chi et al. 2022); lives in zoo/kerple.py, as a scheme of your own would.
pos = "kerple"
