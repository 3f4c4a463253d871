# In place of the softmax each key, from the newest on, takes a share of what is left (Tan 2024).
pos = "stick_breaking"
