"""Text as tokens: corpora, tokenizers, batches, downloads; and a folder for each corpus."""
