# RoPE, and a little of the token before in each embedding, as in nanochat (2026).
pos = "rope + smear"
