# RoPE with scores times s ln(n), where each head learns its s (Nakanishi 2025).
pos = "rope + ssmax"
