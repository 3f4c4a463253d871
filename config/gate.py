# Rope with gates on the output of the heads (Qiu et al. 2025).
pos = "rope + gate"
