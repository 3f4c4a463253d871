#!/usr/bin/env bash
# Expected: a character that a vocabulary lacks is an error, or an unknown token. Seen: BPE()
# without unk_token and byte fallback leaves it out and says nothing; WordPiece, WordLevel and
# Unigram raise. Bits per byte then count bytes that were never scored.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile tokenizers==0.23.3
venv/bin/python -W ignore - <<'PYTHON'
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

text = ["the cat sat on the mat", "a hat and a cat"] * 5
print("tokenizers", tokenizers.__version__)
seen = {}
for model, trainer in (
    (models.BPE(), trainers.BpeTrainer(vocab_size=60, show_progress=False)),
    (models.Unigram(), trainers.UnigramTrainer(vocab_size=60, show_progress=False)),
    (models.WordPiece(), trainers.WordPieceTrainer(vocab_size=60, show_progress=False)),
    (models.WordLevel(), trainers.WordLevelTrainer(vocab_size=60, show_progress=False)),
):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(text, trainer)
    name = type(model).__name__
    try:
        seen[name] = tokenizer.encode("the quick cat zzz").tokens
    except Exception as error:
        seen[name] = type(error).__name__
    print(f"  {name}: {seen[name] if isinstance(seen[name], list) else 'an error'}")
dropped = isinstance(seen["BPE"], list) and "q" not in "".join(seen["BPE"])
others = [isinstance(value, str) for name, value in seen.items() if name != "BPE"]
raise SystemExit(not (dropped and all(others)))
PYTHON
