# RoPE with scores scaled by ln(n) / ln(L), so that attention does not thin out over long texts (Su 2021).
pos = "rope + logn"
