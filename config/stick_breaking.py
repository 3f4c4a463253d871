# Instead of a softmax, each key, newest first, takes a share of what is left (Tan 2024).
pos = "stick_breaking"
