# RoPE with scores scaled by ln(n) / ln(L), so that attention stays as sharp on long texts (Su
# 2021).
pos = "rope + logn"
