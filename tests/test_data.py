"""The corpora: tokenizers, writing and reading, the training stream, the prepare scripts and the download."""

import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import pickle
import re
import socket
import struct
import subprocess
import sys
import threading
import tracemalloc
import urllib.parse
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext.openai_public import r50k_pat_str

import data
import data.books.prepare as books
import data.shakespeare_char.prepare as shakespeare
import data.stdlib.prepare as stdlib
import data.text.prepare as text
import data.wikipedia.prepare as wikipedia
from configurable import UserError
from data.download import download

ROOT = Path(data.__file__).resolve().parents[1]
WORDS = "It was the best of times,\nit was the worst of times.\n\nNaïve — 你好 🙂\n"


def write_bytes(folder: Path, train: list[bytes], val: list[bytes]) -> dict:
    """A corpus of bytes with the given documents."""
    splits = {
        split: [np.frombuffer(document, dtype=np.uint8) for document in documents]
        for split, documents in (("train", train), ("val", val))
    }
    return data.write_corpus(
        folder,
        splits,
        tokenizer="bytes",
        source="a test",
        rule="as given",
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The folder of a small corpus of bytes, named small."""
    write_bytes(tmp_path / "small", [b"one", b"two and more"], [b"three"])
    return tmp_path / "small"


@pytest.fixture
def toy_gpt2(monkeypatch: pytest.MonkeyPatch) -> tiktoken.Encoding:
    """An encoding with GPT-2's pattern and a handful of merges, in the place of GPT-2's own: needs no file."""
    merged = [b" t", b"he", b"  ", b"\n\n", b" \n", b"\n ", b" the", b"\n\n\n"]
    ranks = {piece: rank for rank, piece in enumerate([bytes([i]) for i in range(256)] + merged)}
    toy = tiktoken.Encoding(
        "toy", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 264}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: toy)
    monkeypatch.setitem(data.VOCABULARIES, "gpt2", toy.n_vocab)
    return toy


# ---- tokenizers


def test_every_tokenizer_gives_the_text_back(toy_gpt2: tiktoken.Encoding) -> None:
    for tokenizer in (
        data.ByteTokenizer(),
        data.CharTokenizer("".join(sorted(set(WORDS)))),
        data.GPT2Tokenizer(),
    ):
        ids = tokenizer.encode(WORDS)
        assert all(type(i) is int for i in ids)
        assert tokenizer.decode(ids) == WORDS
        assert tokenizer.decode_bytes(ids) == WORDS.encode("utf-8")
        assert tokenizer.token_bytes()[ids].sum() == len(WORDS.encode("utf-8"))


def test_characters_are_numbered_in_order_and_an_unknown_one_is_named() -> None:
    tokenizer = data.CharTokenizer("abé")
    assert tokenizer.encode("éab") == [2, 0, 1]
    assert tokenizer.token_bytes().tolist() == [1, 1, 2]
    with pytest.raises(UserError, match="'z' at place 3 "):
        tokenizer.encode("abézq")


def test_text_that_is_no_unicode_is_refused_by_every_tokenizer(toy_gpt2: tiktoken.Encoding) -> None:
    for tokenizer in (data.ByteTokenizer(), data.CharTokenizer("ab"), data.GPT2Tokenizer()):
        with pytest.raises(UnicodeEncodeError, match="position 2: surrogates not allowed"):
            tokenizer.encode("ab\udcff")


def test_a_character_cut_in_two_decodes_to_a_replacement() -> None:
    assert data.ByteTokenizer().decode([0xC3]) == "\ufffd"
    assert data.ByteTokenizer().decode_bytes([0xC3]) == b"\xc3"


def test_the_end_of_text_token_stands_for_no_bytes_and_its_name_is_ordinary_text(
    toy_gpt2: tiktoken.Encoding,
) -> None:
    tokenizer = data.GPT2Tokenizer()
    assert tokenizer.end == 264 and tokenizer.token_bytes()[264] == 0
    assert 264 not in tokenizer.encode("a <|endoftext|> b")


def test_a_missing_gpt2_vocabulary_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(UserError, match="TIKTOKEN_CACHE_DIR"):
        data.GPT2Tokenizer()


@pytest.mark.skipif("TIKTOKEN_CACHE_DIR" not in os.environ, reason="TIKTOKEN_CACHE_DIR is not set")
def test_gpt2_tokens_are_the_published_ones() -> None:
    try:
        tokenizer = data.GPT2Tokenizer()
    except UserError as error:
        pytest.skip(str(error))
    assert len(tokenizer.vocabulary) == 50257 and tokenizer.end == 50256
    assert tokenizer.encode("hello world") == [31373, 995]
    assert tokenizer.token_bytes()[[31373, 995, 50256]].tolist() == [5, 6, 0]


# ---- writing and reading


def test_a_corpus_reads_back_as_it_was_written(small: Path) -> None:
    corpus = data.load("small", small.parent)
    assert (
        bytes(corpus.train.tolist()) == b"onetwo and more"
        and bytes(corpus.val.tolist()) == b"three"
    )
    assert corpus.train_starts.tolist() == [0, 3] and corpus.val_starts.tolist() == [0]
    assert (corpus.name, corpus.vocab_size, corpus.unit, corpus.folder) == (
        "small",
        256,
        "byte",
        small,
    )
    assert corpus.train.dtype == np.dtype("<u2")
    assert corpus.tokenizer.token_bytes().tolist() == [1] * 256
    corpus.verify()


def test_meta_json_counts_and_digests_each_split(small: Path) -> None:
    meta = json.loads((small / "meta.json").read_text(encoding="utf-8"))
    stored = np.frombuffer(b"onetwo and more", dtype=np.uint8).astype("<u2").tobytes()
    assert (small / "train.bin").read_bytes() == stored
    assert meta["splits"]["train"] == {
        "tokens": 15, "bytes": 15, "documents": 2, "dtype": "uint16", "sha256": hashlib.sha256(stored).hexdigest(),
    }  # fmt: skip
    assert (
        data.load("small", small.parent).split_sha256("train") == hashlib.sha256(stored).hexdigest()
    )
    about = dict(
        name="small",
        tokenizer="bytes",
        unit="byte",
        vocab_size=256,
        source="a test",
        rule="as given",
    )
    assert {**about, "splits": meta["splits"]} == meta


@pytest.mark.parametrize("size, dtype", [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_a_vocabulary_past_65536_is_stored_in_four_bytes(
    tmp_path: Path, size: int, dtype: str
) -> None:
    characters = "".join(map(chr, range(0x20000, 0x20000 + size)))
    split = [data.CharTokenizer(characters).array(characters[-5:])]
    about = dict(
        tokenizer="char",
        vocab_size=size,
        unit="char",
        source="a test",
        rule="none",
        characters=characters,
    )
    data.write_corpus(tmp_path / "wide", {"train": split, "val": split}, **about)
    corpus = data.load("wide", tmp_path)
    assert corpus.val.dtype == dtype and corpus.val.tolist() == list(range(size - 5, size))
    assert corpus.tokenizer.decode(corpus.val) == characters[-5:]
    assert corpus.meta["splits"]["val"]["bytes"] == len(characters[-5:].encode("utf-8"))


def test_a_document_longer_than_a_block_of_writing_is_stored_whole(tmp_path: Path) -> None:
    long = np.random.default_rng(0).bytes(2**21 + 7)
    meta = write_bytes(tmp_path / "long", [b"before", long], [b"v"])
    corpus = data.load("long", tmp_path)
    assert corpus.train[6:].astype(np.uint8).tobytes() == long and corpus.train_starts.tolist() == [
        0,
        6,
    ]
    assert meta["splits"]["train"]["bytes"] == len(long) + 6
    corpus.verify()


def test_empty_documents_are_left_out_and_an_empty_split_is_refused(tmp_path: Path) -> None:
    write_bytes(tmp_path / "holes", [b"", b"ab", b"", b"c", b""], [b"v"])
    assert data.load("holes", tmp_path).train_starts.tolist() == [0, 2]
    with pytest.raises(UserError, match="val split would be empty"):
        write_bytes(tmp_path / "holes", [b"ab"], [b""])


def test_a_failed_write_leaves_the_older_corpus_and_nothing_else(small: Path) -> None:
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    with pytest.raises(UserError):
        write_bytes(small, [b"other text"], [])
    with pytest.raises(UserError, match="train.bin holds token 300, outside its vocabulary"):
        splits = {"train": [np.array([300])], "val": [np.array([1])]}
        data.write_corpus(small, splits, tokenizer="bytes", source="", rule="")
    assert {path.name: path.read_bytes() for path in small.iterdir()} == before


@pytest.mark.parametrize("done", [1, 3])  # 3: with both token files, as in a folder of nanoGPT's
def test_a_move_that_is_cut_off_never_mixes_two_corpora(
    small: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    moves, replace = [], os.replace

    def replace_once(source: Path, target: Path) -> None:
        moves.append(target)
        if len(moves) > done:
            raise OSError("the disk is full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_once)
    with pytest.raises(UserError, match="cannot be written: the disk is full"):
        write_bytes(small, [b"neo", b"owt"], [b"eerht"])
    with pytest.raises(UserError, match="no corpus"):
        data.load("small", small.parent)


def cut_tokens(folder: Path) -> None:
    os.truncate(folder / "train.bin", 8)


def change_meta(folder: Path, split: str, **values: object) -> None:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    (meta["splits"][split] if split else meta).update(values)
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def zip_starts(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, np.array([0, 3]))


DAMAGES = {
    "train.bin has 4 tokens of uint16, not 15 tokens": cut_tokens,
    "train.bin has 9 bytes": lambda folder: os.truncate(folder / "train.bin", 9),
    "val.bin has 0 bytes": lambda folder: (folder / "val.bin").unlink(),
    "val.bin has 5 tokens of uint16, not 5 tokens of uint32": lambda folder: change_meta(
        folder, "val", dtype="uint32"
    ),
    "not 5 tokens of float32": lambda folder: change_meta(folder, "val", dtype="float32"),
    "train.bin holds token 300, outside": lambda folder: np.full(15, 300, "<u2").tofile(
        folder / "train.bin"
    ),
    "val_starts.npy does not ascend": lambda folder: np.save(
        folder / "val_starts.npy", np.array([1])
    ),
    "train_starts.npy does not ascend": lambda folder: np.save(
        folder / "train_starts.npy", np.array([0, 15])
    ),
    "train.bin has 1 documents, not 2": lambda folder: np.save(
        folder / "train_starts.npy", np.array([0])
    ),
    "train_starts.npy is missing or not a NumPy array": lambda folder: zip_starts(
        folder / "train_starts.npy"
    ),
    "val_starts.npy is missing": lambda folder: (folder / "val_starts.npy").write_bytes(b""),
    "meta.json is missing or not readable": lambda folder: (folder / "meta.json").write_bytes(b"{"),
    "meta.json is missing or not readable JSON": lambda folder: (folder / "meta.json").write_bytes(
        b"[" * 100_000
    ),
    "meta.json has a vocab_size of 1000000000000000000, not": lambda folder: change_meta(
        folder, "", vocab_size=10**18
    ),
    "meta.json has a vocab_size of 10000": lambda folder: change_meta(
        folder, "", vocab_size=10**4000
    ),
    "meta.json has a vocab_size of 0, not": lambda folder: change_meta(folder, "", vocab_size=0),
    "meta.json has a vocab_size of 256, not the 3 of char": lambda folder: change_meta(
        folder, "", tokenizer="char", characters="abc"
    ),
    "meta.json lacks a proper vocab_size": lambda folder: change_meta(folder, "", vocab_size="256"),
    "meta.json lacks a proper splits.train": lambda folder: change_meta(
        folder, "", splits={"train": 1}
    ),
    "meta.json has a vocab_size of 256, not the 0 of char": lambda folder: change_meta(
        folder, "", tokenizer="char"
    ),
    "meta.json lacks a proper characters": lambda folder: change_meta(folder, "", characters=1),
    "meta.json names the tokenizer 'word'": lambda folder: change_meta(
        folder, "", tokenizer="word"
    ),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_file_is_named_with_the_command_that_makes_it_anew(
    small: Path, sentence: str
) -> None:
    DAMAGES[sentence](small)
    with pytest.raises(UserError, match=sentence) as caught:
        data.load("small", small.parent)
    assert str(small) in str(caught.value)
    assert "python data/text/prepare.py --name=small" in str(caught.value)


def test_verify_finds_the_changed_token_that_load_cannot_see(small: Path) -> None:
    np.full(5, 65, "<u2").tofile(small / "val.bin")
    corpus = data.load("small", small.parent)
    with pytest.raises(UserError, match="val.bin does not have the SHA-256"):
        corpus.verify()


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("smal", r"no corpus 'smal', but .*small,"),
        ("stdlb", "stdlib.*; make your own"),
        (
            "quite_another",
            r"books, books_gpt2, .*small, .*stdlib.*data/text/prepare.py --name=NAME",
        ),
        ("books", r"not been made yet: python data/books/prepare.py$"),
        ("books_gpt2", r"not been made yet: python data/books/prepare.py --tokenizer=gpt2$"),
        ("shakespeare_char", r"not been made yet: python data/shakespeare_char/prepare.py$"),
        ("text", "no corpus 'text'"),
        ("../small", "no corpus"),
        ("", "no corpus"),
    ],
)
def test_an_unknown_dataset_is_answered_with_a_name_or_a_command(
    small: Path, name: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        data.load(name, small.parent)


# ---- folders of nanoGPT's


def write_nanogpt(folder: Path, train: list[int], val: list[int], meta: object = None) -> Path:
    """A folder as nanoGPT's prepare.py makes it; `meta` is pickled if it is given."""
    folder.mkdir(parents=True)
    for split, tokens in (("train", train), ("val", val)):
        np.array(tokens, dtype=np.uint16).tofile(folder / f"{split}.bin")
    if meta is not None:
        (folder / "meta.pkl").write_bytes(meta if isinstance(meta, bytes) else pickle.dumps(meta))
    return folder


def vocabulary(characters: str) -> dict:
    """What nanoGPT's data/shakespeare_char/prepare.py pickles."""
    itos = dict(enumerate(characters))
    stoi = {character: number for number, character in itos.items()}
    return {"vocab_size": len(itos), "itos": itos, "stoi": stoi}


def test_characters_of_nanogpt_are_read_as_they_are(tmp_path: Path) -> None:
    folder = write_nanogpt(tmp_path / "nano", [3, 1, 0, 2] * 9, [1, 2, 3], vocabulary("\naéz"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    corpus = data.load("nano", tmp_path)
    assert corpus.tokenizer.decode(corpus.val) == "aéz" and corpus.vocab_size == 4
    assert corpus.train_starts.tolist() == [0]
    assert corpus.tokenizer.token_bytes().tolist() == [1, 1, 2, 1]
    assert corpus.meta["splits"]["train"]["bytes"] == 9 * 5
    assert corpus.split_sha256("val") == hashlib.sha256(before["val.bin"]).hexdigest()
    assert data.sequences(corpus.train, 8, 1, 0, 2).shape == (2, 9)
    corpus.verify()
    now = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert now.keys() - before.keys() == {"meta.json"} and before.items() <= now.items()
    assert data.load("nano", tmp_path).meta == corpus.meta  # and what was written is read again


def test_without_a_vocabulary_tokens_are_gpt2s_and_documents_end_where_its_end_token_is(
    tmp_path: Path, toy_gpt2: tiktoken.Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_nanogpt(tmp_path / "web", [256, 264, 97, 97, 264, 264, 98, 264], [97, 258, 98])
    corpus = data.load("web", tmp_path)
    assert corpus.train_starts.tolist() == [0, 2, 5, 6] and corpus.val_starts.tolist() == [0]
    assert corpus.meta["splits"]["train"] | {"sha256": ""} == {
        "tokens": 8, "bytes": 5, "documents": 4, "dtype": "uint16", "sha256": "",
    }  # fmt: skip
    assert (corpus.unit, corpus.tokenizer.decode(corpus.val)) == ("token", "a  b")


def write_shards(folder: Path, tokens: list[int], ends: list[int], first: int = 0) -> None:
    """Tokens of GPT-2's as train_000.bin and so on, which end where `ends` says, and val.bin."""
    write_nanogpt(folder, tokens, tokens[:7])
    (folder / "train.bin").unlink()
    for number, part in enumerate(np.split(np.array(tokens, dtype=np.uint16), ends), first):
        part.tofile(folder / f"train_{number:03d}.bin")


@pytest.mark.parametrize("first", [0, 1, 8])  # 8: the numbers pass from one digit to two
def test_shards_are_read_as_one_file(
    tmp_path: Path, toy_gpt2: tiktoken.Encoding, first: int
) -> None:
    tokens = np.random.default_rng(0).integers(0, 265, 999).tolist()
    write_nanogpt(tmp_path / "whole", tokens, tokens[:7])
    write_shards(tmp_path / "shards", tokens, [100, 101, 700], first)
    whole, shards = data.load("whole", tmp_path), data.load("shards", tmp_path)
    assert isinstance(shards.train, data.Shards) and len(shards.train.parts) == 4
    assert shards.meta["splits"] == whole.meta["splits"]  # sizes, documents and SHA-256
    assert (shards.train_starts == whole.train_starts).all()
    for seed in range(3):  # windows that cross shards, too
        ours, theirs = (data.sequences(c.train, 32, seed, 0, 60) for c in (shards, whole))
        assert (ours == theirs).all()
    assert (shards.train[90:710] == whole.train[90:710]).all()
    assert (shards.train[:] == whole.train).all() and shards.train[998] == tokens[998]
    assert shards.train[-1] == tokens[-1] and shards.train[-999] == tokens[0]
    for outside in (999, -1000):
        with pytest.raises(IndexError):
            shards.train[outside]
    shards.verify()
    assert {path.name for path in shards.folder.iterdir()} >= {
        "meta.json",
        f"train_{first:03d}.bin",
    }
    assert not (shards.folder / "train.bin").exists()


def test_a_shard_that_is_missing_or_changed_is_named(
    tmp_path: Path, toy_gpt2: tiktoken.Encoding
) -> None:
    write_shards(tmp_path / "web", [1, 2, 3, 4, 5, 6, 7, 8], [2, 4, 6])
    folder = data.load("web", tmp_path).folder
    kept = (folder / "train_001.bin").read_bytes()
    (folder / "train_001.bin").write_bytes(kept[2:] + kept[:2])
    with pytest.raises(UserError, match=r"train_\*.bin does not have the SHA-256"):
        data.load("web", tmp_path).verify()
    (folder / "train_001.bin").unlink()
    with pytest.raises(UserError, match="train_000.bin to train_003.bin in .* one is missing"):
        data.load("web", tmp_path)
    (folder / "train_001.bin").write_bytes(kept)
    (folder / "train_003.bin").unlink()  # the last one leaves no gap, but too few tokens
    with pytest.raises(
        UserError, match=r"train_\*.bin has 6 tokens of uint16, not 8 .*copy all its shards"
    ):
        data.load("web", tmp_path)


@pytest.mark.parametrize(
    "more, problem",
    [
        ("train_0001.bin", "one is missing, or its number twice there"),
        ("train.bin", "has train.bin and train_000.bin: which of them"),
        ("train_001_old.bin", ""),
        ("train_000-of-002.bin", ""),
    ],
)
def test_what_stands_beside_shards_is_refused_or_no_shard(
    tmp_path: Path, toy_gpt2: tiktoken.Encoding, more: str, problem: str
) -> None:
    write_shards(tmp_path / "web", [1, 2, 3, 4, 5, 6], [2, 4])
    (tmp_path / "web" / more).write_bytes(b"1234")
    if problem:
        with pytest.raises(UserError, match=problem):
            data.load("web", tmp_path)
    else:
        assert len(data.load("web", tmp_path).train) == 6


def test_a_split_that_is_missing_beside_the_other_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path / "web", [1, 2, 3, 4, 5, 6], [2, 4])
    (tmp_path / "web/val.bin").unlink()
    with pytest.raises(UserError, match="web has no val.bin, nor val_000.bin: copy it there too"):
        data.load("web", tmp_path)


def test_shards_need_no_memory_for_their_tokens(
    tmp_path: Path, toy_gpt2: tiktoken.Encoding
) -> None:
    write_shards(tmp_path / "web", [*range(200)] * 100_000, [7_000_000, 9_999_999])  # 40 MB
    tokens = data.load("web", tmp_path).train
    tracemalloc.start()
    data.sequences(tokens, 128, 0, 0, 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6, f"{peak:,} bytes"  # the order of the windows takes 8 bytes for each


def test_a_file_of_nanogpts_that_changed_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = write_nanogpt(tmp_path / "nano", [0, 1, 0], [1, 1], vocabulary("ab"))
    data.load("nano", tmp_path)
    np.array([0, 1], dtype=np.uint16).tofile(folder / "val.bin")
    corpus = data.load("nano", tmp_path)
    with pytest.raises(UserError, match=r"val.bin does not have the SHA-256.*delete .*meta\.json"):
        corpus.verify()
    (folder / "meta.json").unlink()
    data.load("nano", tmp_path).verify()


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.mkdir, (os.environ["LONGSHOT_EVIL"],)


BAD_PICKLES = {
    "it names posix.mkdir": {"itos": {0: "a"}, "x": Evil()},
    "it names collections.OrderedDict": {"itos": OrderedDict()},
    "KeyError: 'itos'": {"vocab_size": 50257},
    "KeyError: 0": {"itos": {1: "a", 2: "b"}},
    "not one character": {"itos": {0: "a", 1: "bc"}},
    "two tokens for one character": {"itos": {0: "a", 1: "a"}},
    "has two tokens": {"itos": {}},
    "no vocabulary of characters: UnicodeEncodeError": {"itos": {0: "\ud800"}},
    "no vocabulary of characters: AttributeError": {"itos": {0: 1}},
    "no vocabulary of characters: TypeError": {"itos": 3},
    "no vocabulary of characters: UnpicklingError": b"(.",
    "no vocabulary of characters: ValueError": b"no pickle",
    "exhausted": b"",
    "its LONG_BINPUT is 33554432": b"\x80\x04]r\0\0\0\2.",  # would take 512 MB, and larger ones all
    "its PUT is 33554432": b"]p33554432\n.",
}


@pytest.mark.parametrize("sentence", BAD_PICKLES)
def test_a_pickle_that_is_no_vocabulary_is_refused_and_nothing_in_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sentence: str
) -> None:
    monkeypatch.setenv("LONGSHOT_EVIL", str(tmp_path / "evil"))
    write_nanogpt(tmp_path / "nano", [0], [0], BAD_PICKLES[sentence])
    with pytest.raises(UserError, match=sentence) as caught:
        data.load("nano", tmp_path)
    assert "meta.pkl is no vocabulary" in str(caught.value)
    assert not (tmp_path / "evil").exists() and not (tmp_path / "nano" / "meta.json").exists()


def test_token_files_that_do_not_fit_their_vocabulary_are_refused(
    tmp_path: Path, toy_gpt2: tiktoken.Encoding
) -> None:
    write_nanogpt(tmp_path / "large", [0, 2], [0], vocabulary("ab"))
    write_nanogpt(tmp_path / "other", [264], [265])
    write_nanogpt(tmp_path / "odd", [0], [0])
    (tmp_path / "odd" / "val.bin").write_bytes(b"abc")
    for name, sentence in {
        "large": "train.bin holds token 2, outside its vocabulary of 2",
        "other": "val.bin holds token 265, outside its vocabulary of 265; .*copy its meta.pkl",
        "odd": "val.bin has 3 bytes",
    }.items():
        with pytest.raises(UserError, match=sentence):
            data.load(name, tmp_path)
        assert not (tmp_path / name / "meta.json").exists()


# ---- the training stream


@given(st.integers(1, 40), st.integers(0, 400), st.integers(0, 3), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_an_epoch_reads_every_window_of_its_grid_once(
    block: int, extra: int, seed: int, epoch: int
) -> None:
    n_tokens = block + 1 + extra
    count = data.windows_per_epoch(n_tokens, block)
    windows = data.sequences(
        np.arange(n_tokens, dtype=np.uint16), block, seed, epoch * count, count
    )
    assert (windows == windows[:, :1] + np.arange(block + 1)).all() and windows.max() < n_tokens
    starts = np.sort(windows[:, 0])
    assert (np.diff(starts) == block).all() and starts[0] < block
    assert (n_tokens - 1) // block - 1 <= count <= (n_tokens - 1) // block


def test_every_offset_is_used_and_the_order_changes_with_epoch_and_seed() -> None:
    tokens, count = np.arange(1000, dtype=np.uint16), data.windows_per_epoch(1000, 8)
    starts = data.sequences(tokens, 8, 1, 0, 100 * count)[:, 0].reshape(100, count)
    assert set(starts.min(axis=1)) == set(range(8))
    ranks = {tuple(row.argsort()) for row in starts}
    assert len(ranks) == 100
    assert (starts[0] != data.sequences(tokens, 8, 2, 0, count)[:, 0]).any()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 200))
@settings(max_examples=50, deadline=None)
def test_the_stream_is_the_same_in_slices_of_any_size(counts: list[int], first: int) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 300).astype(np.uint16)
    whole = data.sequences(tokens, 16, 7, first, sum(counts))
    data.epoch_starts.cache_clear()
    edges = first + np.cumsum([0, *counts])
    parts = [
        data.sequences(tokens, 16, 7, int(edge), n) for edge, n in zip(edges, counts, strict=False)
    ]
    assert whole.dtype == np.int64 and whole.shape == (sum(counts), 17)
    assert (np.concatenate(parts) == whole).all()


def test_a_corpus_of_one_sequence_trains_and_a_shorter_one_is_refused() -> None:
    assert data.sequences(np.arange(9), 8, 1, 5, 2).tolist() == [list(range(9))] * 2
    with pytest.raises(UserError, match="8 tokens, fewer than the 9 "):
        data.sequences(np.arange(8), 8, 1, 0, 1)


def test_evenly_spaced_places_lie_in_the_middle_of_equal_parts() -> None:
    assert data.evenly(100, 4).tolist() == [12, 37, 62, 87]
    assert data.evenly(7, 3).tolist() == [1, 3, 5]
    assert data.evenly(3, 64).tolist() == [0, 1, 2] and data.evenly(0, 5).tolist() == []
    assert data.evenly(10**11, 2).tolist() == [10**11 // 4, 3 * 10**11 // 4]


# ---- stdlib


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small tree that looks like a standard library, with what must be left out."""
    top = tmp_path / "library"
    kept = [f"file{i}.py" for i in range(40)] + ["package/__init__.py", "package/deep/er.py"]
    left_out = [f"{folder}/a.py" for folder in sorted(stdlib.LEFT_OUT)] + [
        "package/tests/b.py",
        "notes.txt",
        "c.pyc",
    ]
    for name in kept + left_out:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(f"# {name} \xff\n".encode("latin-1"))
    (top / "empty.py").touch()
    (top / "folder.py").mkdir()
    return top


def test_the_library_is_read_in_order_without_tests_and_packages_of_others(
    tmp_path: Path, library: Path
) -> None:
    names = sorted(
        [f"file{i}.py" for i in range(40)] + ["package/__init__.py", "package/deep/er.py"]
    )
    assert stdlib.sources(library) == sorted([*names, "empty.py"])
    meta = stdlib.prepare(tmp_path / "fake", library)
    corpus = data.load("fake", tmp_path)
    held_out = [
        name for name in names if int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20 == 0
    ]
    assert 0 < len(held_out) < 6
    assert bytes(corpus.val.tolist()) == b"".join(
        (library / name).read_bytes() for name in held_out
    )
    trained = [(library / name).read_bytes() for name in names if name not in held_out]
    assert bytes(corpus.train.tolist()) == b"".join(trained)
    assert corpus.train_starts.tolist() == np.cumsum([0, *map(len, trained)])[:-1].tolist()
    assert (
        "SHA-256 of its path in the library" in meta["rule"]
        and sys.version.split()[0] in meta["source"]
    )


def test_a_python_without_library_sources_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no .py files"):
        stdlib.prepare(tmp_path / "none", tmp_path)


def test_the_default_corpus_is_made_when_first_asked_for_and_then_kept(tmp_path: Path) -> None:
    corpus = data.load("stdlib", tmp_path)
    made = (tmp_path / "stdlib" / "train.bin").stat()
    again = data.load("stdlib", tmp_path)
    assert (tmp_path / "stdlib" / "train.bin").stat().st_mtime_ns == made.st_mtime_ns
    assert len(again.train) > 4_000_000 and len(again.val) > 100_000 and len(again.val_starts) > 10
    assert b"class OrderedDict" in corpus.train.astype(np.uint8).tobytes()
    assert stdlib.prepare(tmp_path / "other")["splits"] == corpus.meta["splits"]
    again.verify()


def test_a_corpus_of_another_python_is_used_as_it_is(small: Path) -> None:
    os.rename(small, small.parent / "stdlib")
    assert bytes(data.load("stdlib", small.parent).val.tolist()) == b"three"


def test_several_processes_may_make_the_default_corpus_at_once(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdlib, "prepare", functools.partial(stdlib.prepare, library=library))
    loaded, gate = [], threading.Barrier(8)

    def load() -> None:
        gate.wait()
        for _ in range(5):
            stdlib.prepare(tmp_path / "stdlib")
            loaded.append(data.load("stdlib", tmp_path))

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 40 and len({bytes(corpus.train) for corpus in loaded}) == 1
    assert {path.name for path in (tmp_path / "stdlib").iterdir()} == {
        "meta.json", "train.bin", "val.bin", "train_starts.npy", "val_starts.npy"
    }  # fmt: skip


def test_about_one_document_in_twenty_is_held_out_and_always_the_same() -> None:
    held_out = [i for i in range(20_000) if data.is_validation(b"%d" % i)]
    assert 900 < len(held_out) < 1100
    assert held_out == [
        i for i in range(20_000) if int(hashlib.sha256(b"%d" % i).hexdigest(), 16) % 20 == 0
    ]


# ---- a user's own texts


def lines_of(documents: list[str]) -> bytes:
    """Documents as JSON lines."""
    return "".join(
        json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(documents)
    ).encode("utf-8")


@pytest.mark.parametrize(
    "pack, ending", [(bytes, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz")]
)
def test_json_lines_are_documents_packed_or_not(
    tmp_path: Path, pack: functools.partial, ending: str
) -> None:
    documents = [f"document {i}: {WORDS}" for i in range(60)]
    (tmp_path / f"d.jsonl{ending}").write_bytes(pack(lines_of(documents) + b"\n"))
    meta = text.prepare("mine", [str(tmp_path / f"d.jsonl{ending}")], [], "bytes", root=tmp_path)
    corpus = data.load("mine", tmp_path)
    held_out = [d.encode() for d in documents if data.is_validation(d.encode())]
    assert held_out and bytes(corpus.val.tolist()) == b"".join(held_out)
    assert len(corpus.train_starts) + len(corpus.val_starts) == 60
    assert meta["rule"].startswith("a document is validation") and meta["source"].endswith(
        f"d.jsonl{ending}"
    )


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder of files of several kinds, each with its own name in it."""
    for name in (
        "b.txt",
        "a/z.txt",
        "a/READ.MD",
        "c.md",
        "a/d.rst",
        "data.csv",
        "e.rst",
        "Makefile",
    ):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name, encoding="utf-8")
    return tmp_path / "in"


def test_a_folder_is_read_in_order_and_no_file_twice(notes: Path) -> None:
    files, skipped = text.find_files([str(notes), str(notes / "b.txt"), str(notes / "e.rst")])
    assert [file.name for file in files] == ["READ.MD", "z.txt", "b.txt", "c.md", "e.rst"]
    assert [file.name for file in skipped] == ["Makefile", "d.rst", "data.csv"]


def test_a_pattern_chooses_by_name_or_by_path(notes: Path) -> None:
    files, skipped = text.find_files([str(notes)], ["a/*.RST", "make*"])
    assert [file.name for file in files] == ["Makefile", "d.rst"] and len(skipped) == 6
    with pytest.raises(UserError, match=r"is a folder without \*.tex files: .*--glob=PATTERN"):
        text.find_files([str(notes)], ["*.tex"])


def test_what_is_not_read_is_counted_by_kind_with_a_few_names(
    notes: Path, capsys: pytest.CaptureFixture
) -> None:
    for number in range(4):
        (notes / f"{number}.csv").touch()
    text.prepare("mine", [str(notes)], [], "bytes", root=notes.parent)
    assert capsys.readouterr().out.splitlines() == [
        "not read: 8 files (--glob=PATTERN chooses what is read)",
        "        5 of .csv: 0.csv, 1.csv, 2.csv, 2 more",
        "        2 of .rst: d.rst, e.rst",
        "        1 of no ending: Makefile",
    ]


def test_a_document_that_is_no_text_is_named_and_left_out_unless_strict(
    notes: Path, capsys: pytest.CaptureFixture
) -> None:
    (notes / "bad.txt").write_bytes(b"good \xff")
    (notes / "binary.md").write_bytes(b"a\0")
    (notes / "lines.jsonl").write_bytes(b'{"text": "first"}\n{"text": "\xff"}\n{"text": "third"}\n')
    paths = [str(notes), str(notes / "lines.jsonl")]
    for tokenizer in ("bytes", "char"):  # char reads everything twice
        text.prepare("mine", paths, [], tokenizer, root=notes.parent, overwrite=True)
        said = capsys.readouterr().out
        assert "left out, as no UTF-8 text: 3 documents (" in said
        assert (
            "bad.txt is not UTF-8 at byte 5" in said and "binary.md holds a NUL at byte 1" in said
        )
        assert "lines.jsonl is not UTF-8 at byte 28 " in said
    corpus = data.load("mine", notes.parent)
    whole = corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.val)
    assert "good" not in whole and "first" in whole and "third" in whole
    with pytest.raises(UserError, match="bad.txt is not UTF-8 at byte 5 "):
        text.prepare("other", paths, [], "bytes", root=notes.parent, strict=True)


def test_a_name_that_is_taken_is_refused_unless_it_may_be_overwritten(
    tmp_path: Path, notes: Path
) -> None:
    write_nanogpt(tmp_path / "nano", [0], [0])
    text.prepare("mine", [str(notes)], [], "bytes", root=tmp_path)
    before = (tmp_path / "mine" / "meta.json").read_bytes()
    for name in ("mine", "nano"):
        with pytest.raises(UserError, match=f"--name={name} is taken: .*--overwrite"):
            text.prepare(name, [str(notes / "c.md")], [], "char", root=tmp_path)
    assert (tmp_path / "mine" / "meta.json").read_bytes() == before
    text.prepare("mine", [str(notes / "c.md")], [], "char", root=tmp_path, overwrite=True)
    assert data.load("mine", tmp_path).tokenizer.decode([0, 1]) == ".c"


def test_a_folder_of_nanogpts_is_not_prepared_but_copied(tmp_path: Path) -> None:
    write_nanogpt(tmp_path / "nano", [0], [0])
    with pytest.raises(UserError, match="nano holds tokens, no text: copy or link it to data/NAME"):
        text.find_files([str(tmp_path / "nano")])


def test_a_single_document_gives_its_last_twentieth(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("0123456789" * 10 + "é", encoding="utf-8")
    meta = text.prepare("one", [str(tmp_path / "one.txt")], [], "char", root=tmp_path)
    corpus = data.load("one", tmp_path)
    assert corpus.tokenizer.decode(corpus.val) == "6789é" and len(corpus.train) == 96
    assert meta["characters"] == "0123456789é" and meta["splits"]["val"]["bytes"] == 6
    assert meta["rule"] == text.TAIL_RULE


def test_documents_that_all_fall_on_one_side_are_cut_at_the_tail() -> None:
    encoded = [(False, np.arange(30)), (False, np.arange(30, 38)), (False, np.arange(38, 40))]
    splits, rule = text.split_documents(encoded)
    assert [document.tolist() for document in splits["val"] if len(document)] == [[38, 39]]
    assert np.concatenate(splits["train"]).tolist() == list(range(38)) and rule == text.TAIL_RULE


def test_named_validation_texts_are_the_validation_split(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("abc abc", encoding="utf-8")
    (tmp_path / "val.txt").write_text("xyz", encoding="utf-8")
    paths = [str(tmp_path / "train.txt")], [str(tmp_path / "val.txt")]
    text.prepare("mine", *paths, "char", root=tmp_path)
    corpus = data.load("mine", tmp_path)
    assert corpus.meta["characters"] == " abcxyz"
    assert (
        corpus.tokenizer.decode(corpus.train) == "abc abc"
        and corpus.tokenizer.decode(corpus.val) == "xyz"
    )
    with pytest.raises(UserError, match="train.txt is in PATH and --val"):
        text.prepare("more", paths[0], paths[0], "char", root=tmp_path)


def test_gpt2_documents_end_with_the_end_of_text_token(
    tmp_path: Path, toy_gpt2: tiktoken.Encoding
) -> None:
    (tmp_path / "d.jsonl").write_bytes(lines_of(["the the", "", WORDS]))
    (tmp_path / "v.txt").write_text("then", encoding="utf-8")
    text.prepare(
        "mine", [str(tmp_path / "d.jsonl")], [str(tmp_path / "v.txt")], "gpt2", root=tmp_path
    )
    corpus = data.load("mine", tmp_path)
    one, two = (toy_gpt2.encode_ordinary(document) + [264] for document in ("the the", WORDS))
    assert corpus.train.tolist() == one + two and corpus.train_starts.tolist() == [0, len(one)]
    assert corpus.meta["splits"]["train"]["bytes"] == len(("the the" + WORDS).encode("utf-8"))
    assert corpus.vocab_size == 265 and corpus.unit == "token"


@given(st.text(st.sampled_from("the \n\t\r\x1c\u2003'é1.你"), max_size=200), st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_a_long_text_cut_into_pieces_has_the_tokens_of_the_whole(whole: str, size: int) -> None:
    merged = [b" t", b"he", b"  ", b"\n\n", b" \n", b"\n ", b" the", b"\n\n\n"]
    ranks = {piece: rank for rank, piece in enumerate([bytes([i]) for i in range(256)] + merged)}
    toy = tiktoken.Encoding("toy", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})
    cut = list(text.cut_text(whole, size))
    assert "".join(cut) == whole and all(len(piece) >= size for piece in cut[:-1])
    assert [i for piece in cut for i in toy.encode_ordinary(piece)] == toy.encode_ordinary(whole)


def test_texts_are_encoded_in_order_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE", 7)
    documents = [WORDS * (1 + i % 5) for i in range(40)]
    assert [len(batch) for batch in text.batches(["ab", "c", "defg", "h"], 3)] == [2, 1, 1]
    encoded = [
        bytes(ids.tolist()).decode() for _, ids in text.encode(documents, data.ByteTokenizer())
    ]
    assert encoded == documents


BAD_TEXTS = {
    "bad.txt": (b"good \xff", r"bad.txt is not UTF-8 at byte 5 \(0xff\)"),
    "bad.jsonl": (b'{"text": "\xc3("}\n', "no text in it; .*bad.jsonl is not UTF-8 at byte 10 "),
    "broken.jsonl": (b'{"text": "a"}\n{"text": \n', "broken.jsonl, line 2, is not JSON"),
    "deep.jsonl": (b"[" * 100_000 + b"\n", "deep.jsonl, line 1, is not JSON"),
    "long.jsonl": (
        b'{"text": "a", "n": ' + b"1" * 5000 + b"}\n",
        "long.jsonl, line 1, is not JSON",
    ),
    "other.jsonl": (b'{"text": "a"}\n\n{"txt": "b"}\n', 'line 3, has no field "text"'),
    "number.jsonl": (b'{"text": 3}\n', 'line 1, has no field "text" that holds a string'),
    "list.jsonl": (b'["text"]\n', 'line 1, has no field "text"'),
    "half.jsonl": (b'{"text": "\\ud800"}\n', "line 1, holds half of a surrogate pair"),
    "cut.txt.xz": (lzma.compress(b"text" * 99)[:-20], "cut.txt.xz cannot be read"),
    "cut.txt.gz": (gzip.compress(b"text" * 99)[:-9], "cut.txt.gz cannot be read"),
    "not.gz": (b"plain text", "not.gz cannot be read"),
    "empty.txt": (b"", "no text in it"),
    "a.txt": (b"a", "train split would be empty"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_what_is_no_text_is_refused_with_file_and_place(tmp_path: Path, name: str) -> None:
    content, sentence = BAD_TEXTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        text.prepare("mine", [str(tmp_path / name)], [], "bytes", root=tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.*"))


def test_a_path_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent is no file or folder"):
        text.find_files([str(tmp_path / "absent")])
    with pytest.raises(UserError, match=r"is a folder without \*.txt or \*.md files"):
        text.find_files([str(tmp_path)])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "-x", "stdlib", "books_gpt2", "text", "é"]
)
def test_a_name_that_is_no_folder_or_already_used_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="--name="):
        text.prepare(name, [str(tmp_path)], [], "bytes", root=tmp_path)


def test_the_command_line_takes_its_arguments_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name in ("a", "b", "v"):
        (tmp_path / name).write_text(name * 20, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(text, "prepare", functools.partial(text.prepare, root=tmp_path))
    monkeypatch.setattr(
        sys, "argv", ["prepare.py", "a", "--name=mine", "b", "--tokenizer", "bytes", "--val", "v"]
    )
    text.main()
    assert bytes(data.load("mine", tmp_path).train.tolist()) == b"a" * 20 + b"b" * 20
    assert "mine: a b --val v; tokenizer bytes, vocabulary 256" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command, sentence",
    [
        (
            ["data/text/prepare.py", "--name=stdlib", "x", "--tokenizer=char"],
            "error: --name=stdlib belongs",
        ),
        (
            ["data/shakespeare_char/prepare.py", "--url=ftp://x/y"],
            "error: 'ftp://x/y' is not an http",
        ),
    ],
)
def test_a_script_run_from_anywhere_ends_with_one_sentence(
    tmp_path: Path, command: list[str], sentence: str
) -> None:
    script = [sys.executable, str(ROOT / command[0]), *command[1:]]
    result = subprocess.run(script, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert (
        result.returncode == 1
        and result.stderr.startswith(sentence)
        and result.stderr.count("\n") == 1
    )


# ---- downloads


class Unreliable(BaseHTTPRequestHandler):
    """Serves `pages` and /good well, and WORDS badly elsewhere."""

    pages: dict[str, bytes] = {}

    def do_GET(self) -> None:
        path = urllib.parse.unquote(self.path)
        body = self.pages.get(path, WORDS.encode("utf-8"))
        if path == "/absent" or self.pages and path not in self.pages:
            return self.send_error(404)
        if self.path == "/silent":
            return self.connection.close()
        first = int(self.headers.get("Range", "bytes=0-")[6:-1])
        if self.path == "/whole":  # does not know parts
            first = 0
        body = body[first:]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/dropped":  # closes with a reset, in the middle
            self.wfile.write(body[:10])
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return self.connection.close()
        self.wfile.write({"/cut": body[:-9], "/other": body[::-1]}.get(self.path, body))

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a server on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Unreliable)
    httpd.handle_error = lambda *arguments: None  # a connection that it dropped itself
    threading.Thread(
        target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


SHA256, SIZE = hashlib.sha256(WORDS.encode("utf-8")).hexdigest(), len(WORDS.encode("utf-8"))


def test_a_good_download_arrives_whole(server: str, tmp_path: Path) -> None:
    download(f"{server}/good", tmp_path / "new" / "words.txt", SHA256, SIZE)
    assert (tmp_path / "new" / "words.txt").read_bytes() == WORDS.encode("utf-8")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["words.txt"]


@pytest.mark.parametrize(
    "page, sentence",
    [
        ("cut", f"cut is cut short: {SIZE - 9} of {SIZE} bytes|cut could not be downloaded"),
        ("other", f"other is another file: its SHA-256 is [0-9a-f]{{64}}, not {SHA256}"),
        ("dropped", "dropped (could not be downloaded|is cut short)"),
        ("silent", "silent could not be downloaded"),
        ("absent", "absent answered 404 Not Found"),
    ],
)
def test_a_bad_download_is_one_sentence_and_leaves_at_most_what_may_go_on(
    server: str, tmp_path: Path, page: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        download(f"{server}/{page}", tmp_path / "words.txt", SHA256, SIZE)
    assert "--url=URL" in str(caught.value) and "--file=PATH" in str(caught.value)
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {".words.txt.part"} and not (left and page in ("other", "absent"))


@pytest.mark.parametrize(("page", "kept"), [("good", 7), ("whole", 7), ("good", SIZE)])
def test_a_download_that_stopped_goes_on_where_it_was(
    server: str, tmp_path: Path, page: str, kept: int
) -> None:
    part = tmp_path / ".words.txt.part"
    part.write_bytes(WORDS.encode("utf-8")[:kept])
    sizes = []
    receive = data.download.receive
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            data.download,
            "receive",
            lambda *how: (sizes.append(part.stat().st_size), receive(*how)),
        )
        where = page if kept < SIZE else "absent"  # a whole one is not asked for again
        download(f"{server}/{where}", tmp_path / "words.txt", SHA256, SIZE)
    assert sizes == [kept] and [path.name for path in tmp_path.iterdir()] == ["words.txt"]
    assert (tmp_path / "words.txt").read_bytes() == WORDS.encode("utf-8")


def test_what_is_left_of_another_file_is_not_kept(server: str, tmp_path: Path) -> None:
    (tmp_path / ".words.txt.part").write_bytes(b"another")
    with pytest.raises(UserError, match="is another file"):
        download(f"{server}/good", tmp_path / "words.txt", SHA256, SIZE)
    assert list(tmp_path.iterdir()) == []
    download(f"{server}/good", tmp_path / "words.txt", SHA256, SIZE)


def test_a_file_longer_than_it_should_be_is_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"another file, of {SIZE} bytes and not {SIZE - 1}"):
        download(f"{server}/good", tmp_path / "words.txt", SHA256, SIZE - 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "words.txt", "ftp://127.0.0.1/x"])
def test_only_web_addresses_are_downloaded(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="not an http or https address"):
        download(url, tmp_path / "words.txt", SHA256, SIZE)


def test_a_machine_without_network_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, but nobody listens
        with pytest.raises(
            UserError, match="could not be downloaded .*refused.*; check the network"
        ):
            download(
                f"http://127.0.0.1:{free.getsockname()[1]}/x", tmp_path / "words.txt", SHA256, SIZE
            )
    assert list(tmp_path.iterdir()) == []


def test_shakespeare_is_split_as_nanogpt_splits_it(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shakespeare, "SHA256", SHA256)
    monkeypatch.setattr(shakespeare, "SIZE", SIZE)
    (tmp_path / "copy.txt").write_text(WORDS, encoding="utf-8", newline="")
    meta = shakespeare.prepare(tmp_path / "s", url=f"{server}/good")
    assert shakespeare.prepare(tmp_path / "s", url="none", file=str(tmp_path / "copy.txt")) == meta
    corpus = data.load("s", tmp_path)
    assert corpus.tokenizer.decode(corpus.train) == WORDS[: int(len(WORDS) * 0.9)]
    assert corpus.tokenizer.decode(corpus.val) == WORDS[int(len(WORDS) * 0.9) :]
    assert meta["characters"] == "".join(sorted(set(WORDS))) and corpus.unit == "char"


def test_a_copy_that_is_another_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy.txt").write_text(WORDS, encoding="utf-8")
    with pytest.raises(UserError, match="copy.txt is cut short"):
        shakespeare.prepare(tmp_path / "s", file=str(tmp_path / "copy.txt"))
    with pytest.raises(UserError, match="absent.txt is not a file"):
        shakespeare.prepare(tmp_path / "s", file=str(tmp_path / "absent.txt"))
    assert not (tmp_path / "s").exists()


# ---- books


BOOK = "*** START OF IT ***\r\n\r\n\r\n\r\nTitle {0}\r\n \t\r\n\r\nIt was book {0}.  \r\nÉnd {0}.\r\n\r\nLicence\r\n"


@dataclass
class Shelf:
    """Some books: the folder of list.json, their files as in the repository, their texts."""

    folder: Path
    files: dict[str, bytes]
    texts: list[str]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Three books to train on and one to validate on, in the place of those that are listed."""
    found = Shelf(tmp_path / "books", {}, [])
    rows = []
    for number in range(4):
        raw = ("\ufeff" + BOOK.format(number)).encode("utf-8")
        whole = books.normal(raw.decode("utf-8-sig"))
        start, end = whole.index("Title"), whole.index("\nLicence")
        name = f"Ä, B/It's {number}; or, What?.txt"
        digests = [hashlib.sha256(data).hexdigest() for data in (raw, whole[start:end].encode())]
        rows.append([100 + number, name, len(raw), digests[0], start, end, digests[1]])
        found.files[name] = raw
        found.texts.append(whole[start:end])
    found.folder.mkdir()
    listed = {"train": rows[:3], "val": rows[3:]}
    (found.folder / "list.json").write_text(json.dumps(listed), encoding="utf-8")
    monkeypatch.setattr(books, "BOOKS", found.folder)
    return found


def pages(shelf: Shelf) -> dict[str, bytes]:
    """The files of the books, by their addresses on the server."""
    return {f"/at/commit/{name}": raw for name, raw in shelf.files.items()}


def read_splits(root: Path) -> list[str]:
    """The text of each split of root/books."""
    corpus = data.load("books", root)
    corpus.verify()
    return [corpus.tokenizer.decode(split) for split in (corpus.train, corpus.val)]


def test_books_are_cut_and_normalised() -> None:
    whole = books.normal(BOOK.format(7))
    assert whole == "*** START OF IT ***\n\nTitle 7\n\nIt was book 7.\nÉnd 7.\n\nLicence\n"
    assert books.normal(whole) == whole


def test_a_download_of_books_goes_on_where_it_stopped(
    server: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, every = f"{server}/at/commit", pages(shelf)
    gone = list(every)[2]
    monkeypatch.setattr(Unreliable, "pages", {k: v for k, v in every.items() if k != gone})
    with pytest.raises(UserError, match="answered 404.*books that came are kept.*--from=PATH"):
        books.prepare(shelf.folder, url=url)
    texts = shelf.folder / "texts"
    assert sorted(path.name for path in texts.iterdir()) == ["100.txt", "101.txt"]
    assert not (shelf.folder / "meta.json").exists()
    (texts / "101.txt").write_text("cut short", encoding="utf-8")  # so it is fetched again
    monkeypatch.setattr(Unreliable, "pages", {k: v for k, v in every.items() if "0" not in k})
    meta = books.prepare(shelf.folder, url=url)
    assert read_splits(shelf.folder.parent) == ["".join(shelf.texts[:3]), shelf.texts[3]]
    assert meta["splits"]["train"]["documents"] == 3 and "4 books" in meta["source"]
    assert books.prepare(shelf.folder, url="no address") == meta  # nothing is left to download


def test_a_folder_and_an_archive_give_what_a_download_gives(shelf: Shelf, tmp_path: Path) -> None:
    clone, archive, plain = tmp_path / "clone", tmp_path / "rows.jsonl.xz", tmp_path / "plain"
    for number, raw in enumerate(shelf.files.values()):
        (clone / "deep").mkdir(parents=True, exist_ok=True)
        (clone / "deep" / f"renamed {number}.txt").write_bytes(raw)
    (clone / "other.txt").write_bytes(b"\xff another book")
    archive.write_bytes(lzma.compress(lines_of(["another", *reversed(shelf.texts)])))
    digests = []
    for source in (clone, archive, plain):
        meta = books.prepare(shelf.folder, sources=[str(source)])
        assert read_splits(tmp_path) == ["".join(shelf.texts[:3]), shelf.texts[3]]
        digests.append([split["sha256"] for split in meta["splits"].values()])
        if not plain.exists():  # the texts as they are kept
            os.rename(shelf.folder / "texts", plain)
        else:
            for path in (shelf.folder / "texts").iterdir():
                path.unlink()
    assert digests[0] == digests[1] == digests[2]


def test_missing_books_are_counted_and_named(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_bytes(lines_of(shelf.texts[1:]))
    with pytest.raises(UserError, match=r"some.jsonl lacks 1 of the 4 books, such as Ä, B/It's 0"):
        books.prepare(shelf.folder, sources=[str(tmp_path / "some.jsonl")])
    with pytest.raises(UserError, match="--from=absent is no file or folder"):
        books.prepare(shelf.folder, sources=["absent"])


def test_a_list_that_does_not_fit_its_file_is_noticed(shelf: Shelf, tmp_path: Path) -> None:
    listed = json.loads((shelf.folder / "list.json").read_text(encoding="utf-8"))
    listed["train"][0][4] += 1
    (shelf.folder / "list.json").write_text(json.dumps(listed), encoding="utf-8")
    (tmp_path / "a.txt").write_bytes(next(iter(shelf.files.values())))
    with pytest.raises(UserError, match="the text of Ä, B/It's 0.* has SHA-256"):
        books.prepare(shelf.folder, sources=[str(tmp_path / "a.txt")])


def test_books_of_gpt2_need_no_second_download(
    shelf: Shelf, tmp_path: Path, toy_gpt2: tiktoken.Encoding
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines_of(shelf.texts))
    books.prepare(shelf.folder, sources=[str(tmp_path / "rows.jsonl")])
    books.prepare(tmp_path / "books_gpt2", "gpt2", url="no address")
    corpus = data.load("books_gpt2", tmp_path)
    one, end = toy_gpt2.encode_ordinary(shelf.texts[3]), [264]
    assert corpus.val.tolist() == one + end and len(corpus.train_starts) == 3


def test_the_list_of_books_is_whole_small_and_split_by_author() -> None:
    path = ROOT / "data/books/list.json"
    listed = books.read_list(path)
    every = listed["train"] + listed["val"]
    assert path.stat().st_size < 100_000 and len(listed["train"]) > 250
    for key in ("number", "file", "sha256", "text_sha256"):
        assert len({getattr(book, key) for book in every}) == len(every)
    assert all(0 < book.start < book.end < book.size for book in every)
    digests = [digest for book in every for digest in (book.sha256, book.text_sha256)]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    authors = {s: {book.file.split("/")[0] for book in listed[s]} for s in listed}
    assert authors["val"] == {"Wharton, Edith", "London, Jack"}
    assert not authors["val"] & authors["train"]
    assert all(book.end - book.start > 2**19 for book in listed["val"])  # 64k tokens and far more
    train = sum(book.end - book.start for book in listed["train"])
    assert 100e6 < train < 150e6


# ---- enwik8, text8, WikiText-103: small archives in the published format, from a server on this machine


ARTICLES = [
    f" = Article {n} = \n \n It has some words , and a number : {n} . \n \n = = History = = \n \n It was @-@ {n} . \n \n"
    for n in range(40)
]
WIKI = {"train": ARTICLES[:30], "valid": ARTICLES[30:34], "test": ARTICLES[34:]}


@pytest.fixture
def wiki(monkeypatch: pytest.MonkeyPatch, server: str, tmp_path: Path) -> Iterator[Path]:
    """A folder for corpora; small archives take the place of the published ones."""
    text = "".join(ARTICLES)
    letters = re.sub("[^a-z]+", " ", text.lower())
    contents = {"enwik8": {"enwik8": text}, "text8": {"text8": letters}}
    parts = {f"wikitext-103-raw/wiki.{name}.raw": " \n" + "".join(of) for name, of in WIKI.items()}
    contents["wikitext103"] = parts
    for name, files in contents.items():
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in files.items():
                archive.writestr(member, content)
        body, known = raw.getvalue(), wikipedia.ARCHIVES[name]
        monkeypatch.setitem(Unreliable.pages, f"/{name}.zip", body)
        digest = hashlib.sha256(body).hexdigest()
        other = known._replace(url=f"{server}/{name}.zip", sha256=digest, size=len(body))
        monkeypatch.setitem(wikipedia.ARCHIVES, name, other)
    monkeypatch.setattr(wikipedia, "__file__", str(tmp_path / "wikipedia/prepare.py"))
    return tmp_path


def test_enwik8_and_text8_are_cut_at_90_and_95_parts_of_100(wiki: Path) -> None:
    text = "".join(ARTICLES).encode("utf-8")
    size = len(text) // 100
    for test, (first, end) in ((False, (90, 95)), (True, (95, 100))):
        wikipedia.prepare(wiki / "enwik8", test=test)
        corpus = data.load("enwik8", wiki)
        assert bytes(corpus.train.astype(np.uint8)) == text[: 90 * size]
        assert bytes(corpus.val.astype(np.uint8)) == text[first * size : end * size]
    wikipedia.prepare(wiki / "text8")
    corpus = data.load("text8", wiki)
    assert corpus.vocab_size == 27 and corpus.unit == "char"
    assert set(corpus.tokenizer.decode(corpus.val)) <= set(wikipedia.LETTERS)


def test_wikitext_has_a_document_for_each_article_and_the_published_parts(wiki: Path) -> None:
    wikipedia.prepare(wiki / "wikitext103")
    corpus = data.load("wikitext103", wiki)
    assert len(corpus.train_starts) == 30 and len(corpus.val_starts) == 4
    second = corpus.val[corpus.val_starts[1] : corpus.val_starts[2]]
    assert corpus.tokenizer.decode(second) == WIKI["valid"][1]
    whole = corpus.tokenizer.decode(corpus.train)
    assert whole == " \n" + "".join(WIKI["train"])  # nothing is lost
    wikipedia.prepare(wiki / "wikitext103_test", test=True)
    assert len(data.load("wikitext103_test", wiki).val_starts) == 6


def test_the_archive_is_downloaded_once_or_read_from_a_copy(wiki: Path) -> None:
    wikipedia.prepare(wiki / "wikitext103")
    archive = wiki / "wikipedia/wikitext103.zip"
    assert archive.exists()
    wikipedia.prepare(wiki / "wikitext103", url="no address")  # nothing is left to download
    copy = wiki / "copy.zip"
    archive.rename(copy)
    wikipedia.prepare(wiki / "wikitext103", file=str(copy))
    assert not archive.exists()
    copy.write_bytes(copy.read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short"):
        wikipedia.prepare(wiki / "wikitext103", file=str(copy))


def test_a_damaged_archive_that_was_kept_is_named(wiki: Path) -> None:
    (wiki / "wikipedia").mkdir()
    (wiki / "wikipedia/text8.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match="text8.zip is damaged"):
        wikipedia.prepare(wiki / "text8")


def test_the_published_archives_have_addresses_sizes_and_digests() -> None:
    for name, known in wikipedia.ARCHIVES.items():
        assert known.url.startswith("https://") and len(known.sha256) == 64 and known.size > 10**7
        assert data.command(name).endswith(f"data/wikipedia/prepare.py {name}")
    assert set(wikipedia.ARCHIVES) == set(data.WIKIPEDIA)
