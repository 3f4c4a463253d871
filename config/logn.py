# RoPE with scores scaled by ln(n) / ln(L), to keep attention sharp on long texts (Su 2021).
pos = "rope + logn"
