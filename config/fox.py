# Each token sets how fast each head forgets the tokens before it (Lin et al. 2025).
pos = "fox"
