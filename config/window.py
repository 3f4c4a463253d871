# RoPE that sees only the last 64 tokens: half the default training length, so that training texts
# are longer than the window.
pos = "rope + window(size=64)"
