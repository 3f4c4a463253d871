"""Text as tokens: a folder for each corpus, each with its prepare.py."""
