# RoPE with a learned sink in each head, so that a head may attend to nothing (gpt-oss, 2025).
pos = "rope + sink"
