# RoPE that sees the last 64 tokens only: half the default training length, so that texts of the
# training are longer than the window.
pos = "rope + window(size=64)"
