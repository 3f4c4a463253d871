# RoPE beside short convolutions of keys, values and branches, as in Inkling (2026).
pos = "rope + short_conv"
