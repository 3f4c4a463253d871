# Every token sets how fast each head forgets what came before it (Lin et al. 2025): flat at any length, by learning it.
pos = "fox"
