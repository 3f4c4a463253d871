# A trained vector for each position, as in GPT-2. It has none past the training length.
pos = "learned"
