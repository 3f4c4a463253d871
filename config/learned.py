# A learned vector for each position, as in GPT-2, and none past the training length.
pos = "learned"
