# RoPE that sees the last 64 tokens only: half the default training length, so that training meets the edge of the window.
pos = "rope + window(size=64)"
