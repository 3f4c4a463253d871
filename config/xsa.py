# Rope, and heads that leave out the direction of the token's own value (Zhai 2026).
pos = "rope + xsa"
