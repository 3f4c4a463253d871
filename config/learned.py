# A trained vector per position, as in GPT-2: undefined past the training length.
pos = "learned"
