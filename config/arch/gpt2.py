# The block of GPT-2 (Radford et al. 2019): biases everywhere, exactly as for its pretrained
# weights.
bias = True
