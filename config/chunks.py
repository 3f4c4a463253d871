# Rope within chunks of a half of the training length in three layers of four, and a layer that sees
# all (Llama 4, 2025).
pos = "3 * (rope + chunks(size=0.5)) | nope"
