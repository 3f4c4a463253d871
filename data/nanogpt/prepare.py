"""Files of GPT-2's tokens as others write them: nanoGPT and its descendants, llm.c, modded-nanogpt.

A folder in data/ with only train.bin and val.bin becomes a corpus when it is first used.

A .bin file of llm.c begins with 256 int32, of which the first are 20240520, the version 1 and the
number of tokens; uint16 tokens follow. Other files have no header: nanoGPT writes uint16, some of
its descendants uint32 or uint64. Which of these is judged by the numbers: the widest type in which
most are below 65,536. Two tokens that are read as one are larger, unless the second is 0.

nanoGPT puts `<|endoftext|>` after each document, llm.c and modded-nanogpt before each, and cut
their shards anywhere. Documents begin with it if a file has llm.c's header, or begins with it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from common.errors import UserError
from data.corpus import SPLITS, write_corpus
from data.tokenizers import GPT2Tokenizer

MAGIC = 20240520  # the first number of llm.c's header
VERSION = 1  # the second: GPT-2's tokens in uint16
HEADER = 1024  # bytes
LLAMA_3 = 20240801  # in the place of MAGIC: Llama 3's tokens
BLOCK = 2**20  # tokens that are read at once
# Tokens that are decoded and encoded again are the same, but at the edges of cut texts: 1.000 of
# GPT-2's own, in five texts. Of bytes that are read in pairs, numbered characters and the tokens of
# another BPE it was 0.40 to 0.96.
CHECKED = 20_000  # tokens
LEAST_SAME = 0.98


def read_bin(path: Path) -> np.memmap:
    """The tokens of a .bin file, (n,), memory-mapped; UserError if it has none."""
    size = path.stat().st_size
    header = np.fromfile(path, dtype="<i4", count=256)
    if len(header) == 256 and header[0] == MAGIC:
        if header[1] != VERSION:
            raise UserError(f"{path} has version {header[1]}, not {VERSION}: take GPT-2's tokens")
        stated = int(header[2])
        if stated == 0 or size - HEADER != 2 * stated:
            raise UserError(
                f"{path} should hold {stated:,} tokens and has {size - HEADER:,} bytes of them, "
                "not two for each: download it again"
            )
        return np.memmap(path, dtype="uint16", mode="r", offset=HEADER)
    if LLAMA_3 in header[:1] or header.tobytes().startswith(b"\x93NUMPY"):
        raise UserError(
            f"{path} does not hold GPT-2's tokens alone, but a header of Llama 3's tokens or of a "
            ".npy file: make a corpus of the text with data/text/prepare.py --tokenizer=FOLDER"
        )
    for dtype in ("uint64", "uint32", "uint16"):
        if size and size % np.dtype(dtype).itemsize == 0:
            tokens = np.memmap(path, dtype=dtype, mode="r")
            if dtype == "uint16" or np.median(tokens[:BLOCK]) < 2**16:
                print(f"{path}: read as {dtype}")
                return tokens
    raise UserError(
        f"{path} has {size} bytes, not two, four or eight for each token: make it again"
    )


def check_tokens(tokens: np.ndarray, path: Path, tokenizer: GPT2Tokenizer) -> None:
    """Raise UserError for tokens that GPT-2's tokenizer would not make of their text. Fewer than a
    thousand are too few to tell.
    """
    given = tokens[:CHECKED].astype(int)
    size = len(tokenizer.vocabulary)
    given = given[given < size]  # of others `write_corpus` says so
    if len(given) < 1000:
        return
    texts = np.split(given, np.flatnonzero(given == tokenizer.end))  # each begins with the token
    made = [tokenizer.array(tokenizer.decode(ids[ids != tokenizer.end])) for ids in texts]
    given = given[given != tokenizer.end]
    counts = [np.bincount(ids, minlength=size) for ids in (given, np.concatenate(made))]
    same = np.minimum(*counts).sum() / len(given)
    if same < LEAST_SAME:
        raise UserError(
            f"{path} does not hold GPT-2's tokens: of the text that they stand for its tokenizer "
            f"makes others ({same:.0%} are the same). They are bytes, or those of another "
            "tokenizer: make a corpus of the text with data/text/prepare.py"
        )


def documents(
    blocks: Iterable[np.ndarray], end: int, is_last: bool = False
) -> Iterator[np.ndarray]:
    """The documents of consecutive blocks of tokens, (n,) each: each begins with the token `end`,
    or, if that `is_last`, ends with it. They may run on in the next block.
    """
    parts = []  # of a document, one from each block
    for block in blocks:
        places = np.flatnonzero(block == end)
        if is_last:
            places = places + 1
        first, *others = np.split(block, places)
        parts.append(first)
        for part in others:
            yield np.concatenate(parts)
            parts = [part]
    yield np.concatenate(parts)


def prepare(folder: Path) -> None:
    """Add what a corpus has to a folder's train.bin and val.bin, which stay as they are.

    UserError for other tokens than GPT-2's, and for several files that may be those of a split.
    """
    if (folder / "meta.pkl").exists():
        raise UserError(
            f"{folder} has characters numbered by meta.pkl, which is not read: make a corpus of "
            "its text with data/text/prepare.py --tokenizer=char"
        )
    for split in SPLITS:
        paths = [*folder.glob(f"*{split}*.bin"), *folder.glob(f"{split}.npy")]
        if not (folder / f"{split}.bin").is_file():
            raise UserError(f"{folder} has no {split}.bin: add it, or make a corpus of its text")
        if len(paths) > 1:
            raise UserError(
                f"{folder} has several files of tokens ({', '.join(path.name for path in paths)}): "
                "keep one train.bin and one val.bin"
            )
    tokens = {split: read_bin(folder / f"{split}.bin") for split in SPLITS}
    tokenizer = GPT2Tokenizer()
    end = tokenizer.end
    dtypes = {split: x.dtype.name for split, x in tokens.items()}
    if len({*dtypes.values()}) > 1:
        raise UserError(
            f"{folder} seems to have tokens of different types ({dtypes}): write both in one"
        )
    for split, numbers in tokens.items():
        check_tokens(numbers, folder / f"{split}.bin", tokenizer)
    if np.array_equal(tokens["train"], tokens["val"]):
        raise UserError(f"{folder}: train.bin and val.bin hold the same tokens: split the text")
    # in both splits alike: a shard that is cut inside a document begins with its text
    is_last = not any(numbers.offset or numbers[0] == end for numbers in tokens.values())
    headers = {}
    splits = {}
    for split, numbers in tokens.items():
        headers[split] = np.fromfile(folder / f"{split}.bin", np.uint8, numbers.offset).tobytes()
        blocks = np.array_split(numbers, 1 + len(numbers) // BLOCK)  # not read yet
        splits[split] = documents(blocks, end, is_last)
    write_corpus(
        folder,
        splits,
        headers=headers,
        dtype=dtypes["train"],
        tokenizer="gpt2",
        source="nanoGPT's files",
        rule="nanoGPT's",
    )
