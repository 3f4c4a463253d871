"""The corpora: tokenizers, writing, reading and damage, the training stream, the prepare programs and downloads."""

import gzip
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.parse
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiktoken
from conftest import write_bytes

import data.books.prepare as books
import data.fineweb.prepare as fineweb
import data.shakespeare_char.prepare as shakespeare
import data.stdlib.prepare as stdlib
import data.text.prepare as text
import data.wikipedia.prepare as wikipedia
from common.errors import UserError
from data import batches, tokenizers
from data import corpus as data
from data.corpus import COMMANDS, OFFLINE, SPLITS, load_corpus, write_corpus
from data.download import download

ROOT = Path(data.__file__).resolve().parents[1]
WORDS = "It was the best of times,\nit was the worst of times.\n\nNaïve — 你好 🙂\n"
RAW = WORDS.encode()
SHA256 = hashlib.sha256(RAW).hexdigest()


@pytest.fixture
def small(tmp_path):
    """The folder of a small corpus of bytes, named small."""
    write_bytes(tmp_path / "small", [b"one", b"", b"two and more"], [b"three"])
    return tmp_path / "small"


# ---- tokenizers


def train_tokenizer(folder, kind):
    """A small tokenizer.json: byte-level as GPT-2's, or with byte fallback as SentencePiece's, also
    with a space before each text.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    folder.mkdir()
    spaced = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind in ("byte_level", "prefixed"):
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "prefixed")
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        special = ["<|end|>"]
    else:
        made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        replace = normalizers.Replace(" ", "▁")
        made.normalizer = replace
        made.decoder = decoders.Sequence(spaced)
        if kind != "fallback":
            made.decoder = decoders.Sequence([*spaced, decoders.Strip(" ", 1, 0)])
        if kind == "prepend":  # as Llama 2's
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        elif kind == "metaspace":
            made.normalizer = None
            made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
        alphabet = []
        special = ["<|end|>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([WORDS[:50] * 3], trainer)
    content = json.loads(made.to_str())
    if kind not in ("byte_level", "prefixed"):  # bytes are ordinary tokens, as in Llama's files
        content["added_tokens"] = content["added_tokens"][:2]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "config.json").write_text('{"eos_token_id": [0, 1]}', encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", ["bytes", "char", "gpt2", "byte_level", "fallback"])
def test_a_tokenizer_gives_the_text_back_and_its_bytes(kind, toy_gpt2, tmp_path):
    if kind == "char":
        tokenizer = tokenizers.CharTokenizer("".join(sorted(set(WORDS))))
    elif kind in ("byte_level", "fallback"):
        folder = train_tokenizer(tmp_path / kind, kind)
        tokenizer = tokenizers.FileTokenizer(folder / "tokenizer.json", end=0)
    else:
        tokenizer = tokenizers.tokenizer_of({"tokenizer": kind})
    ids = tokenizer.encode(WORDS)
    assert tokenizer.decode(ids) == WORDS and tokenizer.decode_bytes(ids) == RAW
    assert tokenizer.sizes[ids].sum() == len(RAW)
    if kind == "gpt2":
        assert ids == toy_gpt2.encode_ordinary(WORDS) and tokenizer.end == 264
        assert 264 not in tokenizer.encode("a <|endoftext|> b")
    if kind == "byte_level":
        names = [tokenizer.inner.id_to_token(i) for i in ids]
        assert names == [tokenizers.signs_of(tokenizer.vocabulary[i]) for i in ids]
    if tokenizer.end is not None:
        assert tokenizer.sizes[tokenizer.end] == 0


@pytest.mark.parametrize("kind", ["byte_level", "fallback"])
def test_tokens_of_a_tokenizer_json_are_those_of_transformers(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    path = train_tokenizer(tmp_path / kind, kind) / "tokenizer.json"
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    ours = tokenizers.FileTokenizer(path)
    assert ours.encode(WORDS) == theirs.encode(WORDS, add_special_tokens=False)
    assert len(ours.vocabulary) == len(theirs)


@pytest.mark.parametrize("kind", ["byte_level", "fallback", "prefixed", "prepend", "metaspace"])
def test_the_bytes_of_a_document_are_those_of_its_text(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = train_tokenizer(tmp_path / kind, kind)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["truncation"] = {
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    texts = [WORDS, "你好", "it <|end|> was <0x0A>", "a\n\n  b ", " spaced"]
    (tmp_path / "texts.jsonl").write_bytes(lines_of(texts))
    (tmp_path / "train.txt").write_text("something else", encoding="utf-8")
    paths = [str(tmp_path / "train.txt")], [str(tmp_path / "texts.jsonl")]
    text.prepare("mine", *paths, str(folder), tmp_path)
    corpus = load_corpus("mine", tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    starts = [*corpus.val_starts.tolist(), len(corpus.val)]
    assert len(starts) == len(texts) + 1
    for one, start, end in zip(texts, starts, starts[1:], strict=False):
        sizes = corpus.text_bytes(np.arange(start, end))
        if kind in ("prefixed", "metaspace"):  # as theirs, takes such a space for its own
            one = one.removeprefix(" ")
        assert sizes.sum() == len(one.encode()) and sizes[-1] == 0  # the end token
        given = theirs.decode(corpus.val[start : end - 1].tolist())
        assert given.removeprefix(" " if kind == "prefixed" else "") == one


LOSSY = {
    "lower": {"type": "Lowercase"},
    "nfkc": {"type": "NFKC"},
    "accents": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
}


@pytest.mark.parametrize("kind", [*LOSSY, "swallow"])
def test_a_document_that_the_tokenizer_changes_is_left_out_and_said(kind, tmp_path, capsys):
    folder = train_tokenizer(tmp_path / kind, "byte_level")
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    if kind == "swallow":  # a token that takes the spaces before it
        added = content["added_tokens"][0] | {"content": "É½", "special": False, "lstrip": True}
        content["added_tokens"].append(added | {"id": len(content["model"]["vocab"])})
    else:
        content["normalizer"] = LOSSY[kind]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    texts = ["plain words", "more of them", "some  É½ here"]
    (tmp_path / "texts.jsonl").write_bytes(lines_of(texts))
    (tmp_path / "all.txt").write_text(texts[2], encoding="utf-8")
    text.prepare("mine", [str(tmp_path / "texts.jsonl")], [], str(folder), tmp_path)
    assert "left out: 1 documents (the tokenizer does not give" in capsys.readouterr().out
    corpus = load_corpus("mine", tmp_path)
    ids = [*corpus.train, *corpus.val]
    assert bytes(corpus.tokenizer.decode_bytes(i for i in ids if i)) == "".join(texts[:2]).encode()
    with pytest.raises(UserError, match="no text in it; the tokenizer does not give .* back"):
        text.prepare("none", [str(tmp_path / "all.txt")], [], str(folder), tmp_path)


def test_gpt2_tokens_are_the_published_ones():
    try:
        tokenizer = tokenizers.GPT2Tokenizer()
    except UserError:
        pytest.skip("GPT-2's vocabulary is not here")
    assert tokenizer.encode("Hello world") == [15496, 995] and tokenizer.end == 50256


def test_what_a_tokenizer_cannot_do_is_a_sentence(monkeypatch, tmp_path):
    with pytest.raises(UserError, match="'q' is not among"):
        tokenizers.CharTokenizer("abé").encode("abéq")

    def unreachable(name):
        raise ConnectionError("no route")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(UserError, match="TIKTOKEN_CACHE_DIR"):
        tokenizers.GPT2Tokenizer()
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be read as a tokenizer"):
        tokenizers.FileTokenizer(tmp_path / "tokenizer.json")
    words = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
    with pytest.raises(UserError, match="no token for each byte"):
        tokenizers.FileTokenizer(tmp_path / "tokenizer.json")


# ---- writing and reading


def test_a_corpus_reads_back_as_it_was_written(small):
    corpus = load_corpus("small", small.parent)
    assert bytes(corpus.train.tolist()) == b"onetwo and more" and corpus.train.dtype == np.uint16
    assert corpus.train_starts.tolist() == [0, 3] and corpus.val_starts.tolist() == [0]
    assert (corpus.vocab_size, corpus.unit, corpus.name) == (256, "byte", "small")
    digest = hashlib.sha256((small / "val.bin").read_bytes()).hexdigest()
    assert corpus.split_sha256("val") == digest and corpus.fits(256) and not corpus.fits(300)
    corpus.verify()
    assert {path.name for path in small.iterdir()} == {
        "meta.json", "train.bin", "val.bin", "train_starts.npy", "val_starts.npy"
    }  # fmt: skip


def test_a_vocabulary_past_65536_is_stored_in_four_bytes(tmp_path):
    characters = "".join(chr(0x10000 + n) for n in range(2**16 + 1))
    ids = [np.array([0, 2**16, 5])]
    about = {"tokenizer": "char", "characters": characters, "source": "", "rule": ""}
    write_corpus(tmp_path / "many", {"train": ids, "val": ids}, **about)
    corpus = load_corpus("many", tmp_path)
    assert corpus.train.dtype == "uint32" and corpus.train.tolist() == [0, 2**16, 5]


def test_a_failed_write_leaves_the_older_corpus_and_nothing_else(small):
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    with pytest.raises(UserError, match="the val split would be empty"):
        write_bytes(small, [b"other"], [b""])
    high = [np.array([256])]
    with pytest.raises(UserError, match="token 256, outside its vocabulary of 256"):
        write_corpus(small, {"train": high, "val": high}, tokenizer="bytes", source="", rule="")
    assert {path.name: path.read_bytes() for path in small.iterdir()} == before


@pytest.mark.parametrize("moves", [1, 3])
def test_a_move_that_is_cut_off_never_mixes_two_corpora(small, monkeypatch, moves):
    replace = os.replace
    left = [None] * moves

    def cut_off(source, target):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        replace(source, target)

    monkeypatch.setattr(os, "replace", cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(small, [b"other"], [b"others"])
    with pytest.raises(UserError, match="there is no corpus 'small'"):
        load_corpus("small", small.parent)


def change_meta(folder, text, other):
    """Replace a text in meta.json."""
    content = (folder / "meta.json").read_text(encoding="utf-8")
    assert text in content
    (folder / "meta.json").write_text(content.replace(text, other), encoding="utf-8")


DAMAGES = {
    "train.bin or train_starts.npy is not as it was made": lambda f: os.truncate(
        f / "train.bin", 28
    ),
    "No such file.*val.bin": lambda f: (f / "val.bin").unlink(),
    "train.bin or train_starts.npy is not as it was": lambda f: change_meta(
        f, '"tokens": 15', '"tokens": 13'
    ),
    "pickled": lambda f: (f / "train_starts.npy").write_bytes(b"x"),
    "No such file.*val_starts.npy": lambda f: (f / "val_starts.npy").unlink(),
    "or train_starts.npy is not as it was made": lambda f: np.save(
        f / "train_starts.npy", np.array([0, 9, 15])
    ),
    "unsized": lambda f: np.save(f / "val_starts.npy", np.array(0)),
    "holds no JSON object": lambda f: (f / "meta.json").write_text("{"),
    "'val'": lambda f: change_meta(f, '"val"', '"test"'),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_file_is_named_with_what_to_do(small, reason):
    DAMAGES[reason](small)
    sentence = f"small is damaged .*{reason}.*: make the corpus again"
    with pytest.raises(UserError, match=sentence):
        load_corpus("small", small.parent)


def test_verify_finds_the_changed_token_that_load_cannot_see(small):
    (small / "val.bin").write_bytes(b"thr\0e\0ee\0\0")
    corpus = load_corpus("small", small.parent)
    corpus.verify("train")
    with pytest.raises(UserError, match="val.bin does not match the SHA-256 in meta.json"):
        corpus.verify()


NAMES = {
    "stdlb": "there is no corpus .stdlb.: did you mean stdlib.$",
    "smal": "did you mean small",
    "books": "there is no corpus 'books': make it with python data/books/prepare.py",
    "enwik8_test": "python data/wikipedia/prepare.py enwik8 --test",
    "zebra": "python data/text/prepare.py --name=zebra PATH...; the project's are stdlib",
    "needles_single_books": "python data/needles/prepare.py --corpus=CORPUS --kind=KIND",
    "../small": "there is no corpus '../small'",
    "": "there is no corpus ''",
}


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_dataset_is_answered_with_a_name_or_a_command(small, name):
    with pytest.raises(UserError, match=NAMES[name]):
        load_corpus(name, small.parent)


def test_every_command_names_a_program():
    for name, command in COMMANDS.items():
        assert (ROOT / command.split()[0]).is_file(), name
    assert set(OFFLINE) <= set(COMMANDS)


# ---- FineWeb's shards


def write_shard(path, tokens, magic=20240520, version=1, stated=None):
    """A shard as llm.c writes it: 256 int32, then uint16, little-endian."""
    header = [magic, version, len(tokens) if stated is None else stated] + [0] * 253
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """A folder of three shards; 50,257 pieces stand in for GPT-2's vocabulary."""
    pairs = [bytes([first, second]) for first in range(196) for second in range(256)]
    pieces = [bytes([byte]) for byte in range(256)] + pairs
    ranks = {piece: rank for rank, piece in enumerate(pieces[:50256])}
    special = {"<|endoftext|>": 50256}
    toy = tiktoken.Encoding("t", pat_str=".", mergeable_ranks=ranks, special_tokens=special)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: toy)
    folder = tmp_path / "shards"
    folder.mkdir()
    write_shard(folder / "fineweb_train_000002.bin", [9, 50256, 40000])
    write_shard(folder / "fineweb_train_000001.bin", [50256, 5, 50256, 7, 8])
    write_shard(folder / "fineweb_val_000000.bin", [50256, 300, 301])
    return folder


def test_the_shards_of_llm_c_are_a_corpus(shards, tmp_path):
    fineweb.prepare(tmp_path / "fineweb", shards)
    corpus = load_corpus("fineweb", tmp_path)
    corpus.verify()
    assert corpus.train.tolist() == [50256, 5, 50256, 7, 8, 9, 50256, 40000]  # 7 8 9: one document
    assert corpus.train_starts.tolist() == [0, 2, 6]
    assert corpus.val.tolist() == [50256, 300, 301] and corpus.val_starts.tolist() == [0]
    assert corpus.meta["tokenizer"] == "gpt2" and corpus.train.dtype == np.uint16
    assert corpus.tokenizer.end == 50256


@pytest.mark.parametrize(
    "damage, sentence",
    [
        (lambda path: write_shard(path, [1], magic=20240801), "a header of Llama 3's tokens"),
        (lambda path: write_shard(path, [1], version=7), "has version 7, not 1"),
        (lambda path: write_shard(path, [1, 2], stated=3), "should hold 3 tokens and has 4 bytes"),
        (lambda path: write_shard(path, [1, 2], stated=1), "should hold 1 tokens and has 4 bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has 5 bytes of them"),
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "not a shard of llm.c"),
        (lambda path: path.unlink(), "has no fineweb_val_"),
    ],
)
def test_a_shard_that_cannot_be_read_is_a_sentence(shards, tmp_path, damage, sentence):
    damage(shards / "fineweb_val_000000.bin")
    with pytest.raises(UserError, match=sentence):
        fineweb.prepare(tmp_path / "fineweb", shards)
    assert not (tmp_path / "fineweb").exists()


def test_a_folder_of_nanogpts_is_read_as_it_is(tmp_path, toy_gpt2):
    folder = tmp_path / "web"
    folder.mkdir()
    for split, tokens in (("train", [5, 264, 7, 8, 264]), ("val", [9, 10])):
        np.array(tokens, dtype=np.uint16).tofile(folder / f"{split}.bin")
    before = (folder / "train.bin").read_bytes()
    corpus = load_corpus("web", tmp_path)
    assert corpus.train.tolist() == [5, 264, 7, 8, 264] and corpus.val.tolist() == [9, 10]
    assert corpus.train_starts.tolist() == [0, 2] and corpus.unit == "token"
    assert corpus.fits(304) and not corpus.fits(200)  # a model's vocabulary may be padded
    assert (folder / "train.bin").read_bytes() == before
    assert load_corpus("web", tmp_path).meta == corpus.meta
    (folder / "train.bin").write_bytes(before + b"\0\0")
    with pytest.raises(UserError, match="delete its meta.json and .*_starts.npy, which are made"):
        load_corpus("web", tmp_path)
    for name in ("meta.json", "train_starts.npy", "val_starts.npy"):
        (folder / name).unlink()
    assert len(load_corpus("web", tmp_path).train) == 6


def test_a_corpus_without_its_meta_json_is_not_taken_for_gpt2s_tokens(corpora, tmp_path, toy_gpt2):
    shutil.copytree(corpora / "tiny", tmp_path / "tiny")
    (tmp_path / "tiny/meta.json").unlink()
    with pytest.raises(UserError, match="there is no corpus 'tiny'"):
        load_corpus("tiny", tmp_path)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int64", "header"])
def test_the_type_of_tokens_is_read_from_the_file(tmp_path, toy_gpt2, monkeypatch, dtype):
    monkeypatch.setattr("data.nanogpt.prepare.BLOCK", 7)  # documents run over blocks
    tokens = {"train": [5, 264, 7, 0, 8, 264] * 9, "val": [9, 10, 11, 264, 12, 13, 14, 15]}
    if dtype == "header":  # llm.c writes the end token before a document
        tokens = {split: [264, *ids] for split, ids in tokens.items()}
    (tmp_path / "web").mkdir()
    before = {}
    for split, ids in tokens.items():
        path = tmp_path / f"web/{split}.bin"
        if dtype == "header":
            write_shard(path, ids)
        else:
            np.array(ids, dtype=dtype).tofile(path)
        before[split] = path.read_bytes()
    for _ in range(2):  # the second time by its meta.json
        corpus = load_corpus("web", tmp_path)
        corpus.verify()
        assert corpus.train.tolist() == tokens["train"] and corpus.val.tolist() == tokens["val"]
        ends = [n + (dtype != "header") for n, token in enumerate(tokens["val"]) if token == 264]
        assert corpus.val_starts.tolist() == (ends if dtype == "header" else [0, *ends])
        assert len(corpus.train_starts) == 18 + (dtype == "header")
    for split, content in before.items():
        assert (tmp_path / f"web/{split}.bin").read_bytes() == content


def test_shards_that_are_cut_inside_a_document_have_their_end_token_where_the_others_have_it(
    tmp_path, toy_gpt2
):
    (tmp_path / "cut").mkdir()
    write_shard(tmp_path / "cut/train.bin", [5, 264, 7, 8, 264, 9])
    write_shard(tmp_path / "cut/val.bin", [264, 9, 10])
    (tmp_path / "bare").mkdir()  # the same without headers: one of the splits begins with it
    np.array([5, 264, 7, 8, 264, 9], np.uint16).tofile(tmp_path / "bare/train.bin")
    np.array([264, 9, 10], np.uint16).tofile(tmp_path / "bare/val.bin")
    for name in ("cut", "bare"):
        corpus = load_corpus(name, tmp_path)
        assert corpus.train_starts.tolist() == [0, 1, 4] and corpus.val_starts.tolist() == [0]
    write_shard(tmp_path / "fineweb_val_000000.bin", [264, 9, 10])
    (tmp_path / "shards").mkdir()
    (tmp_path / "fineweb_val_000000.bin").rename(tmp_path / "shards/fineweb_val_000000.bin")
    with pytest.raises(UserError, match="name one of its files train.bin and one val.bin"):
        load_corpus("shards", tmp_path)


def shards_beside(folder):
    write_shard(folder / "web_train_000001.bin", [1])


UNREADABLE = {
    "a header of Llama 3's tokens": lambda f: write_shard(f / "val.bin", [1], magic=20240801),
    "has version 7, not 1": lambda f: write_shard(f / "val.bin", [1], version=7),
    "should hold 3 tokens and has 4": lambda f: write_shard(f / "val.bin", [1, 2], stated=3),
    "or of a .npy file": lambda f: np.save((f / "val.bin").open("wb"), np.arange(9)),
    "has 5 bytes, not two": lambda f: (f / "val.bin").write_bytes(b"\1\0\1\0\1"),
    "has 0 bytes": lambda f: (f / "val.bin").write_bytes(b""),
    "of different types.*uint32": lambda f: np.array([7, 8]).astype("u4").tofile(f / "val.bin"),
    "token 99999, outside its vocabulary": lambda f: [
        np.array([7, n, 99999]).astype("u4").tofile(f / f"{split}.bin")
        for n, split in enumerate(SPLITS)
    ],
    r"several files of tokens \(.*web_train_000001.bin": shards_beside,
}


def test_other_tokens_do_not_pass_as_gpt2s(tmp_path, toy_gpt2):
    """Numbers that the vocabulary has, but that its tokenizer would not make of their text."""
    text = " the hello the he" * 300
    own = toy_gpt2.encode(text)
    words = [token for word in text.split() for token in (*toy_gpt2.encode(word), 264)]
    tokens = {
        "own": own,
        "words": words,
        "cut": own[1:],
        "bytes": [*text.encode()],
        "few": [*text.encode()[:999]],
    }
    for name, ids in tokens.items():
        (tmp_path / name).mkdir()
        for split in SPLITS:
            kept = ids[: len(ids) - (split == "val")]  # the splits differ
            np.array(kept, np.uint16).tofile(tmp_path / f"{name}/{split}.bin")
    for name in ("own", "words", "cut", "few"):
        assert load_corpus(name, tmp_path).train.tolist() == tokens[name]
    with pytest.raises(UserError, match=r"does not hold GPT-2's tokens: .* \(29% are the same\)"):
        load_corpus("bytes", tmp_path)
    assert not (tmp_path / "bytes/meta.json").exists()
    # each split is looked at, and they must differ
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    np.array(own, np.uint16).tofile(mixed / "train.bin")
    np.array(tokens["bytes"], np.uint16).tofile(mixed / "val.bin")
    with pytest.raises(UserError, match="val.bin does not hold GPT-2's tokens"):
        load_corpus("mixed", tmp_path)
    np.array(own, np.uint16).tofile(mixed / "val.bin")
    with pytest.raises(UserError, match="train.bin and val.bin hold the same tokens"):
        load_corpus("mixed", tmp_path)


@pytest.mark.parametrize("sentence", UNREADABLE)
def test_tokens_that_are_not_gpt2s_are_a_sentence_and_the_files_stay(tmp_path, toy_gpt2, sentence):
    folder = tmp_path / "web"
    folder.mkdir()
    for split in SPLITS:
        tokens = [5, 264, 7] if split == "train" else [5, 264]
        np.array(tokens, dtype=np.uint16).tofile(folder / f"{split}.bin")
    UNREADABLE[sentence](folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match=sentence):
        load_corpus("web", tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_of_nanogpts_that_cannot_be_read_is_a_sentence(tmp_path, toy_gpt2):
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "train.bin").write_bytes(b"\1\0\2\0")
    with pytest.raises(UserError, match="no val.bin"):
        load_corpus("web", tmp_path)
    (folder / "val.bin").write_bytes(b"\1\0\2\2")
    with pytest.raises(UserError, match="token 514, outside its vocabulary of 265"):
        load_corpus("web", tmp_path)
    (folder / "meta.pkl").write_bytes(b"")
    with pytest.raises(UserError, match="meta.pkl, which is not read"):
        load_corpus("web", tmp_path)


# ---- training sequences


def sequences(tokens, block_size, *args):
    """Training sequences, (count, block_size + 1)."""
    starts = batches.sequence_starts(len(tokens), block_size, *args)
    return tokens[starts[:, None] + np.arange(block_size + 1)]


@pytest.mark.parametrize("n_tokens, block_size", [(1000, 10), (1007, 16), (40, 16), (17, 16)])
def test_an_epoch_reads_every_token_of_its_windows_once(n_tokens, block_size):
    n_windows = max(1, n_tokens // block_size - 1)
    offsets = set()
    for epoch in range(12):
        first = epoch * n_windows
        found = sequences(np.arange(n_tokens), block_size, 7, first, n_windows)
        assert (np.diff(found, axis=1) == 1).all()
        read = np.sort(found[:, :-1].ravel())
        assert (read == read[0] + np.arange(n_windows * block_size)).all()
        offsets.add(int(read[0]))
    assert max(offsets) < block_size and (len(offsets) > 3 or n_tokens < 2 * block_size)


def test_a_sequence_depends_on_the_seed_and_its_number_alone():
    tokens = np.arange(5000)
    stream = sequences(tokens, 32, 1, 0, 400)
    resumed = sequences(tokens, 32, 1, 123, 277)
    assert (stream[123:] == resumed).all()
    # two processes take the halves of each batch of 8
    halves = [sequences(tokens, 32, 1, 8 * k + 4 * r, 4) for k in range(50) for r in range(2)]
    assert (np.concatenate(halves) == stream).all()
    assert (stream != sequences(tokens, 32, 2, 0, 400)).any()


def test_the_order_of_sequences_is_that_of_the_published_runs():
    found = sequences(np.arange(100_000), 128, 1337, 700, 200).astype("<i8")
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == "b88a06c7dc76e7c7"


def test_a_text_shorter_than_one_sequence_is_refused():
    assert sequences(np.arange(5), 4, 0, 3, 1).tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(UserError, match="has 4 tokens, fewer than the 5 of one sequence"):
        sequences(np.arange(4), 4, 0, 0, 1)


def test_evenly_spaced_places_lie_in_the_middle_of_equal_parts():
    assert batches.evenly(100, 4).tolist() == [12, 37, 62, 87]
    assert batches.evenly(3, 9).tolist() == [0, 1, 2] and batches.evenly(0, 9).tolist() == []


# ---- stdlib and one's own texts


def lines_of(texts):
    """A .jsonl file."""
    return "\n\n".join(json.dumps({"text": text}) for text in texts).encode()


def test_the_library_is_read_in_order_without_tests_and_packages_of_others(tmp_path):
    names = [f"file{i:02}.py" for i in range(40)]
    for name in [*names, "package/tests/b.py", "site-packages/a.py", "encodings/a.py", "notes.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n", encoding="utf-8")
    stdlib.prepare(tmp_path / "fake", tmp_path)
    corpus = load_corpus("fake", tmp_path)
    held_out = [n for n in names if int(hashlib.sha256(n.encode()).hexdigest(), 16) % 20 == 0]
    trained = [n for n in names if n not in held_out]
    assert corpus.tokenizer.decode(corpus.val) == "".join(f"# {n}\n" for n in held_out)
    assert corpus.tokenizer.decode(corpus.train) == "".join(f"# {n}\n" for n in trained)
    with pytest.raises(UserError, match="no .py files"):
        stdlib.prepare(tmp_path / "none", tmp_path / "absent")


def test_the_default_corpus_is_made_when_first_asked_for_and_then_kept(tmp_path):
    corpus = load_corpus("stdlib", tmp_path)
    made = (tmp_path / "stdlib/train.bin").stat()
    again = load_corpus("stdlib", tmp_path)
    assert (tmp_path / "stdlib/train.bin").stat().st_mtime_ns == made.st_mtime_ns
    assert len(again.train) > 4_000_000 and len(again.val_starts) > 10
    assert b"class OrderedDict" in corpus.train.astype(np.uint8).tobytes()
    again.verify()


def test_about_one_document_in_twenty_is_held_out():
    held_out = [i for i in range(20_000) if text.is_validation(b"%d" % i)]
    assert 900 < len(held_out) < 1100 and held_out[:3] == [96, 105, 127]


@pytest.fixture
def notes(tmp_path):
    """A folder with texts and other things."""
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    for n in range(90):
        (folder / f"{n:02}.txt").write_text(f"note {n}\n" * 3, encoding="utf-8")
    (folder / "deep/A.MD").write_bytes(b"\xef\xbb\xbfmarked")
    (folder / "code.py").write_text("print()", encoding="utf-8")
    (folder / "bad.txt").write_bytes(b"ab\xffcd")
    (folder / "empty.txt").touch()
    return folder


def test_a_folder_is_read_in_order_and_what_is_left_out_is_said(notes, capsys):
    text.prepare("mine", [str(notes), str(notes / "01.txt")], [], "bytes", notes.parent)
    corpus = load_corpus("mine", notes.parent)
    texts = [f"note {n}\n" * 3 for n in range(90)] + ["marked"]
    held_out = [t for t in texts if text.is_validation(t.encode())]
    assert 0 < len(held_out) < 12
    assert corpus.tokenizer.decode(corpus.val) == "".join(held_out)
    trained = "".join(t for t in texts if t not in held_out)
    assert corpus.tokenizer.decode(corpus.train) == trained
    said = capsys.readouterr().out
    assert "not read: 1 other files (--glob" in said
    assert "bad.txt is not UTF-8 at byte 2 (0xff)" in said
    text.prepare("code", [str(notes)], [], "bytes", notes.parent, patterns=["*.py"])
    assert len(load_corpus("code", notes.parent).train_starts) == 1  # the tail is validation


@pytest.mark.parametrize("packed", ["", ".xz", ".gz"])
def test_json_lines_are_documents_packed_or_not(tmp_path, packed, toy_gpt2):
    pack = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress}[packed]
    lines = [f"the document {n}\u2028\n" * 9 for n in range(20)]
    path = tmp_path / f"rows.jsonl{packed}"
    path.write_bytes(pack(lines_of(lines)))
    (tmp_path / "val.txt").write_text("the rest", encoding="utf-8")
    text.prepare("rows", [str(path)], [str(tmp_path / "val.txt")], "gpt2", tmp_path)
    corpus = load_corpus("rows", tmp_path)
    expected = [token for line in lines for token in [*toy_gpt2.encode_ordinary(line), 264]]
    assert corpus.train.tolist() == expected and len(corpus.train_starts) == 20
    assert corpus.tokenizer.decode(corpus.val) == "the rest<|endoftext|>"


def test_a_linked_folder_is_read_once_and_what_cannot_be_unpacked_is_a_sentence(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.ndjson").write_bytes(lines_of(["one", "two", " "]))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/linked").symlink_to(tmp_path / "texts")
    (tmp_path / "texts/back").symlink_to(tmp_path / "notes")  # a circle
    found = text.find_files([str(tmp_path / "notes")], ["*.ndjson"])
    assert [path.name for path in found] == ["a.ndjson"]
    assert list(text.documents(found, "reading", [])) == ["one", "two"]
    with pytest.raises(UserError, match="a.jsonl.zst is packed in a way that is not read"):
        path = tmp_path / "a.jsonl.zst"
        path.write_bytes(b"?")
        list(text.documents([path], "reading", []))


@pytest.mark.parametrize("name", ["a.json", "b.CSV", "c.tsv", "d.json.gz"])
def test_texts_in_quotes_are_read_only_where_a_pattern_asks_for_them(name, tmp_path):
    (tmp_path / name).write_text('{"text": "one"}', encoding="utf-8")
    with pytest.raises(UserError, match="would be read as one text, with its quotes"):
        text.find_files([str(tmp_path / name)])
    pattern = f"*{Path(name).suffix}"
    assert text.find_files([str(tmp_path)], [pattern]) == [tmp_path / name]
    assert text.find_files([str(tmp_path / name)], [pattern]) == [tmp_path / name]


def test_names_of_files_are_read_in_any_case(tmp_path):
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(lines_of(["one", "two"])))
    (tmp_path / "val.txt").write_text("three", encoding="utf-8")
    text.prepare(
        "a", [str(tmp_path / "A.JSONL.GZ")], [str(tmp_path / "val.txt")], "bytes", tmp_path
    )
    assert bytes(load_corpus("a", tmp_path).train.tolist()) == b"onetwo"


def test_a_validation_document_that_is_in_train_is_refused_unless_allowed(tmp_path):
    (tmp_path / "train.jsonl").write_bytes(lines_of(["one two", "three", "four"]))
    (tmp_path / "val.jsonl").write_bytes(lines_of(["three", " one\r\n  two\n", "five"]))
    paths = [str(tmp_path / "train.jsonl")], [str(tmp_path / "val.jsonl")]
    with pytest.raises(
        UserError, match="2 of the 3 documents of --val are in PATH too, except .*'three'"
    ):
        text.prepare("mine", *paths, "bytes", tmp_path)
    assert not (tmp_path / "mine").exists()
    meta = text.prepare("mine", *paths, "bytes", tmp_path, allow_copies=True)
    assert meta["splits"]["val"]["documents"] == 3 and "2 of its documents" in meta["rule"]


def test_copies_but_for_white_space_are_all_in_one_split(tmp_path, capsys):
    texts = [f"text number {n}" for n in range(60)]
    spaced = [f"text  number\n{n}\n" for n in range(60)]
    (tmp_path / "all.jsonl").write_bytes(lines_of(texts + spaced))
    text.prepare("mine", [str(tmp_path / "all.jsonl")], [], "bytes", tmp_path)
    assert "60 documents are copies of others in PATH" in capsys.readouterr().out
    corpus = load_corpus("mine", tmp_path)
    held_out = [n for n in range(60) if text.is_validation(texts[n].encode())]
    of_val = [texts[n] for n in held_out] + [spaced[n] for n in held_out]
    assert held_out and corpus.tokenizer.decode(corpus.val) == "".join(of_val)
    # of so few that the end of the last one is validation
    (tmp_path / "two.jsonl").write_bytes(lines_of(["a b", "a\nb"]))
    with pytest.raises(
        UserError, match="the last 5 % of the tokens may be of such copies; .*--allow_copies"
    ):
        text.prepare("two", [str(tmp_path / "two.jsonl")], [], "bytes", tmp_path)


def test_few_documents_give_the_last_twentieth_of_all_and_stay_documents(tmp_path):
    texts = ["x" * 60, "y" * 39, "z"]
    assert not any(text.is_validation(one.encode()) for one in texts)
    (tmp_path / "few.jsonl").write_bytes(lines_of(texts))
    text.prepare("few", [str(tmp_path / "few.jsonl")], [], "bytes", tmp_path)
    corpus = load_corpus("few", tmp_path)
    assert corpus.tokenizer.decode(corpus.train) == "x" * 60 + "y" * 35
    assert corpus.tokenizer.decode(corpus.val) == "yyyyz"
    assert corpus.train_starts.tolist() == [0, 60] and corpus.val_starts.tolist() == [0, 4]


def test_a_document_that_is_most_of_the_text_is_not_held_out(tmp_path):
    book = next(x for n in range(999) if text.is_validation((x := f"{n} " * 300).encode()))
    letters = [f"a letter, the {n}th" for n in range(9)]
    (tmp_path / "few.jsonl").write_bytes(lines_of([book, *letters]))
    meta = text.prepare("few", [str(tmp_path / "few.jsonl")], [], "bytes", tmp_path)
    tokens = {name: split["tokens"] for name, split in meta["splits"].items()}
    assert tokens["val"] == sum(tokens.values()) // 20
    letter = next(x for n in range(999) if text.is_validation((x := f"{n}th letter").encode()))
    (tmp_path / "many.jsonl").write_bytes(lines_of([book, letter, book + " ", *letters]))
    meta = text.prepare("many", [str(tmp_path / "many.jsonl")], [], "bytes", tmp_path)
    assert meta["splits"]["val"]["tokens"] == len(letter)  # the copy of the book stays with it
    assert "the largest of these are training" in meta["rule"]


def test_one_document_gives_its_last_twentieth(tmp_path):
    (tmp_path / "one.txt").write_text("abcdefghij" * 20, encoding="utf-8")
    text.prepare("one", [str(tmp_path / "one.txt")], [], "char", tmp_path)
    corpus = load_corpus("one", tmp_path)
    assert (corpus.vocab_size, len(corpus.train), len(corpus.val)) == (10, 190, 10)
    assert corpus.tokenizer.decode(corpus.val) == "abcdefghij"


@pytest.mark.parametrize("kind", ["byte_level", "fallback"])
def test_the_tokenizer_of_a_model_goes_along_with_its_end(tmp_path, kind):
    folder = train_tokenizer(tmp_path / kind, kind)
    (tmp_path / "one.txt").write_text(WORDS, encoding="utf-8")
    (tmp_path / "two.txt").write_text("two", encoding="utf-8")
    paths = [str(tmp_path / "one.txt")], [str(tmp_path / "two.txt")]
    text.prepare("mine", *paths, str(folder), tmp_path)
    corpus = load_corpus("mine", tmp_path)
    ours = tokenizers.FileTokenizer(folder / "tokenizer.json", 0)
    assert corpus.train.tolist() == [*ours.encode(WORDS), 0]
    assert corpus.fits(corpus.vocab_size + 5) and not corpus.fits(corpus.vocab_size - 1)
    assert corpus.tokenizer.decode_bytes([corpus.vocab_size + 3]) == b""
    (tmp_path / "mine/tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="not the file that this corpus was made with"):
        load_corpus("mine", tmp_path).tokenizer.encode("a")


BAD_TEXTS = {
    "zip.txt": (b"PK\0\0", "zip.txt holds a NUL"),
    "latin.txt": ("é" * 9).encode("latin-1"),
    "a.jsonl": (b'{"text": "a"}\n{"txt": 1}', 'line 2, is not JSON with text in the field "text"'),
    "b.jsonl": (b"{", "b.jsonl, line 1, is not JSON"),
    "c.jsonl": (b'{"text": "\\ud800"}\n{"text": null}', "line 1, holds half of a surrogate pair"),
    "f.jsonl": (b'{"text": false}', 'line 1, is not JSON with text in the field "text"'),
    "e.jsonl": (b'{"text": ["a"]}', 'line 1, is not JSON with text in the field "text"'),
    "d.jsonl.xz": (b"no archive", "d.jsonl.xz cannot be read"),
    "empty.txt": (b"", "no text in it"),
}
BAD_TEXTS["latin.txt"] = (BAD_TEXTS["latin.txt"], r"is not UTF-8 at byte 0 \(0xe9\)")


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_what_is_no_text_is_refused_with_file_and_place(tmp_path, name):
    content, sentence = BAD_TEXTS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        text.prepare("mine", [str(tmp_path / name)], [], "bytes", tmp_path)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["../up", "", "a b", "stdlib", "books", "text", "small"])
def test_a_name_that_is_no_folder_or_already_used_is_refused(small, name):
    with pytest.raises(UserError, match=f"--name={name} "):
        text.prepare(name, ["absent.txt"], [], "bytes", small.parent)


def test_one_bad_line_does_not_cost_the_others(tmp_path, capsys):
    lines = [json.dumps({"text": f"a document, number {n}. " * 9}) for n in range(40)]
    made = []
    for bad in ([], ['{"text": null}', '{"text": "\\ud800"}']):
        (tmp_path / "a.jsonl").write_text("\n".join([*lines[:3], *bad, *lines[3:]]))
        name = f"with{len(bad)}"
        made.append(text.prepare(name, [str(tmp_path / "a.jsonl")], [], "bytes", tmp_path))
    assert made[0]["splits"] == made[1]["splits"]
    left_out = "left out: 1 documents \\(.*a.jsonl, line 5, holds half of a surrogate pair"
    assert re.search(left_out, capsys.readouterr().out)


def test_a_text_with_the_name_of_the_token_after_a_document_is_a_sentence(tmp_path):
    """Where the token is an ordinary added one; a special token is ordinary text."""
    folder = train_tokenizer(tmp_path / "tokenizer", "byte_level")
    path = folder / "tokenizer.json"
    given = json.loads(path.read_text(encoding="utf-8"))
    name = given["added_tokens"][0]["content"]
    special = tokenizers.FileTokenizer(path, 0)
    assert special.decode(special.array(f"a{name}b")) == f"a{name}b"
    given["added_tokens"][0]["special"] = False
    path.write_text(json.dumps(given), encoding="utf-8")
    with pytest.raises(
        UserError, match="is in the text, but ends a document: split the text there"
    ):
        tokenizers.FileTokenizer(path, 0).array(f"a{name}b")


def test_text_that_tiktoken_cannot_split_is_a_sentence(toy_gpt2, monkeypatch):
    def too_long(*words, **options):
        raise ValueError("Max stack size exceeded")

    tokenizer = tokenizers.GPT2Tokenizer()
    monkeypatch.setattr(tokenizer, "encoding", SimpleNamespace(encode_to_numpy=too_long))
    with pytest.raises(UserError, match="tiktoken cannot read the text .Max stack size"):
        tokenizer.array("a")


def test_paths_and_tokenizers_that_cannot_be_used_are_sentences(notes, tmp_path):
    cases = [
        (["absent"], [], "bytes", "there is no file or folder absent"),
        ([str(notes / "deep")], [str(notes / "deep")], "bytes", "is in PATH and --val"),
        ([str(notes)], [], "words", "--tokenizer=words has no tokenizer.json; give bytes, char"),
        ([str(tmp_path / "empty")], [], "bytes", "empty: no text in it$"),
    ]
    (tmp_path / "empty").mkdir()
    for paths, val_paths, tokenizer, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            text.prepare("mine", paths, val_paths, tokenizer, tmp_path)


def test_the_token_after_a_document_is_read_from_the_file_beside_the_tokenizer(tmp_path):
    (tmp_path / "a.txt").write_text(WORDS, encoding="utf-8")

    def end_of(name, tokenizer):
        return text.prepare(name, [str(tmp_path / "a.txt")], [], str(tokenizer), tmp_path)[
            "end_token"
        ]

    folder = train_tokenizer(tmp_path / "tokenizer", "byte_level")
    assert end_of("model", folder) == end_of("file", folder / "tokenizer.json") == 0
    (folder / "config.json").unlink()
    names = folder / "tokenizer_config.json"
    for end in ('"<|end|>"', '{"content": "<|end|>"}'):
        names.write_text(f'{{"eos_token": {end}}}', encoding="utf-8")
        assert end_of(f"n{len(end)}", folder / "tokenizer.json") == 0
    # an id that is no added token, perhaps of the model that this one was made of
    for number, given in enumerate(("300", "[300, 0]")):
        (folder / "config.json").write_text(f'{{"eos_token_id": {given}}}', encoding="utf-8")
        assert end_of(f"left{number}", folder) == 0
    names.unlink()
    (folder / "config.json").write_text('{"eos_token_id": 300}', encoding="utf-8")
    assert end_of("unnamed", folder) is None
    for given in ("[]", '"x"', "[0, -1]", "{}"):
        (folder / "config.json").write_text(f'{{"eos_token_id": {given}}}', encoding="utf-8")
        with pytest.raises(UserError, match="eos_token_id = .* is no token"):
            end_of("none", folder)
    (folder / "config.json").unlink()
    for end in ('"</s>"', '{"text": "<|end|>", "content": "</s>"}', "7"):
        names.write_text(f'{{"eos_token": {end}}}', encoding="utf-8")
        with pytest.raises(UserError, match="tokenizer_config.json: eos_token = .* is no token of"):
            end_of("none", folder)
    assert not (tmp_path / "none").exists()
    # a file that is no tokenizer leaves the corpus as it was
    before = (tmp_path / "file/tokenizer.json").read_bytes()
    with pytest.raises(UserError, match="cannot be read as a tokenizer"):
        paths = [str(tmp_path / "a.txt")]
        text.prepare("file", paths, [], str(tmp_path / "a.txt"), tmp_path, overwrite=True)
    assert (tmp_path / "file/tokenizer.json").read_bytes() == before
    with pytest.raises(UserError, match="--tokenizer=tok/none.json has no tokenizer.json"):
        end_of("none", "tok/none.json")


@pytest.mark.parametrize("words", [["--help"], ["--name=../x", "a.txt", "--tokenizer=bytes"]])
def test_a_program_run_from_anywhere_answers_in_a_sentence(tmp_path, words):
    program = [sys.executable, str(ROOT / "data/text/prepare.py"), *words]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    if words == ["--help"]:
        assert ended.returncode == 0 and "--tokenizer" in ended.stdout
    else:
        assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr


# ---- downloads


class Unreliable(BaseHTTPRequestHandler):
    """Serves `pages`, and WORDS well and badly elsewhere."""

    pages: dict[str, bytes] = {}

    def do_GET(self):
        path = urllib.parse.unquote(self.path)
        if path == "/absent" or (self.pages and path not in self.pages):
            return self.send_error(404)
        if path == "/silent":
            return self.connection.close()
        body = self.pages.get(path, RAW)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if path == "/dropped":  # closes with a reset, in the middle
            self.wfile.write(body[:10])
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return self.connection.close()
        bodies = {"/cut": body[:-9], "/other": body[::-1]}
        self.wfile.write(bodies.get(path, body))

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def server(monkeypatch):
    """The address of a server on this machine."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Unreliable, "pages", {})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Unreliable)
    httpd.handle_error = lambda *arguments: None  # a connection that it dropped itself
    serve = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    serve.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def test_a_good_download_arrives_whole(server, tmp_path):
    download(f"{server}/good", tmp_path / "new/words.txt", SHA256)
    assert (tmp_path / "new/words.txt").read_bytes() == RAW
    assert len(list((tmp_path / "new").iterdir())) == 1


@pytest.mark.parametrize(
    "page, sentence",
    [
        (
            "/absent",
            r"could not be downloaded \(404 .*Not Found.*\); check the network, name a mirror",
        ),
        ("/silent", r"could not be downloaded \("),
        ("/dropped", r"could not be downloaded \("),
        ("/cut", r"could not be downloaded \("),
        ("/other", "is not the expected file .its SHA-256 is [0-9a-f]{64}.; check the network"),
    ],
)
def test_a_bad_download_is_one_sentence_and_leaves_nothing(server, tmp_path, page, sentence):
    with pytest.raises(UserError, match=sentence):
        download(server + page, tmp_path / "words.txt", SHA256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/words", "file:///etc/hostname", "words.txt", "ftp://127.0.0.1/x"]
)
def test_without_network_or_address_the_user_is_told_what_to_do(tmp_path, url):
    with pytest.raises(UserError, match=r"could not be downloaded \(.+\); check the network"):
        download(url, tmp_path / "words.txt", SHA256)
    assert list(tmp_path.iterdir()) == []


def test_shakespeare_is_split_as_nanogpt_splits_it(server, tmp_path, monkeypatch):
    monkeypatch.setattr(shakespeare, "SHA256", SHA256)
    shakespeare.prepare(tmp_path / "play", f"{server}/good")
    corpus = load_corpus("play", tmp_path)
    cut = int(len(WORDS) * 0.9)
    assert corpus.tokenizer.decode(corpus.train) == WORDS[:cut]
    assert corpus.tokenizer.decode(corpus.val) == WORDS[cut:]
    shakespeare.prepare(tmp_path / "play", "no address")  # what is there is not downloaded again
    (tmp_path / "play/input.txt").write_bytes(RAW[:-1])
    with pytest.raises(UserError, match="input.txt is not the published file"):
        shakespeare.prepare(tmp_path / "play")


# ---- books and Wikipedia: small ones in the published formats


def test_books_are_downloaded_once_or_read_from_copies(server, tmp_path, monkeypatch):
    folder = tmp_path / "books"
    folder.mkdir()
    files, texts, listed = [], [], []
    for number in range(4):
        raw = f"\ufeffSTART  \r\n\r\n\r\nTitle {number}\r\n\r\nÉnd {number}.\r\n\r\nLicence\r\n"
        whole = books.normal(raw[1:])
        start, end = whole.index("Title"), whole.index("\nLicence")
        texts.append(whole[start:end])
        files.append(raw.encode())
        first, last = (hashlib.sha256(x).hexdigest() for x in (files[-1], texts[-1].encode()))
        listed.append([number, f"Ä, B/It's {number}?.txt", len(raw), first, start, end, last])
    content = json.dumps({"train": listed[:3], "val": listed[3:]})
    (folder / "list.json").write_text(content, encoding="utf-8")
    monkeypatch.setattr(books, "BOOKS", folder)
    assert texts[1] == "Title 1\n\nÉnd 1.\n"

    Unreliable.pages = {f"/at/{listed[0][1]}": files[0]}
    with pytest.raises(UserError, match="404 .*Not Found.*books that came are kept.*--from=FOLDER"):
        books.prepare(folder, url=f"{server}/at")
    (tmp_path / "clone/Ä, B").mkdir(parents=True)
    (tmp_path / "clone" / listed[1][1]).write_bytes(files[1])
    with pytest.raises(FileNotFoundError, match=r"clone/Ä, B/It's 2"):
        books.prepare(folder, clone=str(tmp_path / "clone"))
    (tmp_path / "clone" / listed[2][1]).write_bytes(files[1])
    with pytest.raises(UserError, match="2.*txt holds another text than list.json says"):
        books.prepare(folder, clone=str(tmp_path / "clone"))
    (folder / "texts/0.txt").write_text("cut short", encoding="utf-8")  # so it is fetched again
    Unreliable.pages |= {f"/at/{listed[n][1]}": files[n] for n in (2, 3)}
    meta = books.prepare(folder, url=f"{server}/at")
    corpus = load_corpus("books", tmp_path)
    assert corpus.tokenizer.decode(corpus.train) == "".join(texts[:3])
    assert corpus.tokenizer.decode(corpus.val) == texts[3] and len(corpus.train_starts) == 3
    assert books.prepare(folder, url="no address") == meta  # nothing is left to download


def test_the_list_of_books_is_split_by_author():
    listed = books.read_list(ROOT / "data/books/list.json")
    authors = {split: {book.file.split("/")[0] for book in listed[split]} for split in listed}
    assert len(authors["val"]) == 24 and not authors["val"] & authors["train"]
    assert len(listed["train"]) > 240 and len(listed["val"]) == 39
    assert min(book.end - book.start for book in listed["val"]) >= 65536


ARTICLES = [
    f" = Article {n} = \n \n Some words : {n} . \n \n = = History = = \n" for n in range(40)
]
PARTS = {"train": ARTICLES[:30], "valid": ARTICLES[30:34], "test": ARTICLES[34:]}


@pytest.fixture
def wiki(monkeypatch, server, tmp_path):
    """A folder for corpora; small archives take the place of the published ones."""
    contents = {
        "enwik8": {"enwik8": "".join(ARTICLES)},
        "text8": {"text8": "some words " * 90},
        "wikitext103": {
            f"wikitext-103-raw/wiki.{part}.raw": "".join(of) for part, of in PARTS.items()
        },
    }
    for name, files in contents.items():
        raw = io.BytesIO()
        with zipfile.ZipFile(raw, "w") as archive:
            for member, content in files.items():
                archive.writestr(member, content)
        Unreliable.pages[f"/{name}.zip"] = raw.getvalue()
        url, sha256 = wikipedia.ARCHIVES[name]
        assert url.startswith("https://") and len(sha256) == 64
        digest = hashlib.sha256(raw.getvalue()).hexdigest()
        monkeypatch.setitem(wikipedia.ARCHIVES, name, (f"{server}/{name}.zip", digest))
    monkeypatch.setattr(wikipedia, "__file__", str(tmp_path / "wikipedia/prepare.py"))
    return tmp_path


def test_enwik8_text8_and_wikitext_have_the_published_parts(wiki):
    whole = "".join(ARTICLES)
    size = len(whole) // 100
    for name, test, first, end in (("enwik8", False, 90, 95), ("enwik8_test", True, 95, 100)):
        wikipedia.prepare(wiki / name, test=test)
        corpus = load_corpus(name, wiki)
        assert corpus.tokenizer.decode(corpus.train) == whole[: 90 * size]
        assert corpus.tokenizer.decode(corpus.val) == whole[first * size : end * size]
    wikipedia.prepare(wiki / "text8")
    assert load_corpus("text8", wiki).vocab_size == 27
    wikipedia.prepare(wiki / "wikitext103")
    corpus = load_corpus("wikitext103", wiki)
    assert len(corpus.train_starts) == 30 and len(corpus.val_starts) == 4
    assert corpus.tokenizer.decode(corpus.train) == "".join(PARTS["train"])
    wikipedia.prepare(wiki / "wikitext103_test", test=True, mirror="no address")
    assert len(load_corpus("wikitext103_test", wiki).val_starts) == 6
    (wiki / "wikipedia/wikitext103.zip").write_bytes(b"no archive")
    with pytest.raises(UserError, match="wikitext103.zip is not the published file: delete it"):
        wikipedia.prepare(wiki / "wikitext103")
