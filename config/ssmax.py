# RoPE with scores times s ln(n), s learned by each head (Nakanishi 2025): logn that fits itself.
pos = "rope + ssmax"
