# A learned kernel of the distance (Chi et al. 2022). zoo/kerple.py is a good template for your own
# scheme.
pos = "kerple"
