"""FineWeb in GPT-2's tokens, from the shards of llm.c and modded-nanogpt.

    hf download kjj0/fineweb10B-gpt2 --repo-type=dataset --local-dir=FOLDER
    python data/fineweb/prepare.py --from=FOLDER

FOLDER has any number of fineweb_train_*.bin and fineweb_val_*.bin; all are read, in order of their
names. All together are 20 GB: `--include='fineweb_*_00000[0-4].bin'` selects the validation shard
and four training shards of 100 million tokens. No checksums of them are published; the corpus's is
in its meta.json.

A shard is a header of 256 int32 (20240520, version 1, number of tokens) and the tokens, uint16. A
document begins with GPT-2's end token, 50256, and may continue in the next shard.
"""

import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from common.errors import UserError, run_program
from data.corpus import SPLITS, new_parser, write_corpus
from data.nanogpt.prepare import documents, read_bin

END = 50256  # the token before each document
RULE = "the parts of the shards; a document begins with its end token"


def read_shard(path: Path) -> np.ndarray:
    """The tokens of a shard, (n,) uint16, memory-mapped; UserError if it is not a shard."""
    tokens = read_bin(path)
    if not tokens.offset:
        raise UserError(f"{path} is not a shard of llm.c: it has no header; leave it out")
    return np.asarray(tokens)


def prepare(folder: Path, shards: Path) -> dict:
    """Write the corpus to `folder` and return its meta.json.

    UserError, before anything is written, if `shards` is empty or one is damaged.
    """
    splits = {}
    for split in SPLITS:
        paths = sorted(shards.glob(f"fineweb_{split}_*.bin"))
        if not paths:
            raise UserError(f"{shards} has no fineweb_{split}_*.bin: see --help for their address")
        for path in paths:
            read_shard(path)
        shards_read = map(read_shard, tqdm(paths, unit="shard", desc=split, disable=None))
        splits[split] = documents(shards_read, END)
    return write_corpus(folder, splits, tokenizer="gpt2", source="FineWeb's shards", rule=RULE)


def main() -> None:
    """Make the corpus in the folder of this file and print what it holds."""
    parser = new_parser(__doc__)
    where = "the folder of the shards"
    parser.add_argument("--from", dest="shards", required=True, metavar="FOLDER", help=where)
    prepare(Path(__file__).resolve().parent, Path(parser.parse_args().shards))


if __name__ == "__main__":
    run_program(main)
