"""Needles: the rows that are made of a corpus, what is refused, what a window model is told, and a run."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import torch
from conftest import REPOSITORY
from tiktoken_ext.openai_public import r50k_pat_str
from torch import Tensor, nn

import data
import data.needles.prepare as needles
import evaluate
import train
from configurable import UserError
from data import rows
from runs import answers
from runs.checkpoint import load_run
from runs.device import CPU
from runs.figures import plot_answers
from runs.processes import ALONE
from runs.results import load_result
from runs.start import run_corpus

NEEDLE = re.compile(rb"\n([a-z]{2}):([A-Z]{4})\.")
ALPHABET = "".join(map(chr, range(ord("A"), ord("Z") + 1))).encode()
TEXT = (REPOSITORY / "configurable.py").read_bytes() * 3 + ALPHABET


def text_corpus(folder: Path, tokenizer: str = "bytes", text: bytes = TEXT) -> data.Corpus:
    """A corpus of some English sentences and code."""
    letters = text.decode()
    extra = {"characters": "".join(sorted(set(letters)))} if tokenizer == "char" else {}
    ids = data.tokenizer_of({"tokenizer": tokenizer, **extra}).array(letters)
    about = {"tokenizer": tokenizer, "source": "a test", "rule": "as given", **extra}
    data.write_corpus(folder, {"train": [ids], "val": [ids]}, **about)
    return data.load(folder.name, folder.parent)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and short rows."""
    monkeypatch.setattr(needles, "TRAIN_ROWS", 40)
    monkeypatch.setattr(needles, "VALUES", 10)
    monkeypatch.setattr(needles, "TIMES", 2)


@pytest.fixture(autouse=True)
def hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bin needs 100 values: there are no more in these small corpora."""
    monkeypatch.setattr(answers, "LEAST", 100)


def made(folder: Path, kind: str, **how: Any) -> data.Corpus:
    """A corpus of needles in the text corpus `folder / "text"`, made if it is not there."""
    if not (folder / "text").exists():
        text_corpus(folder / "text")
    needles.prepare(folder / kind, data.load("text", folder), kind, **{"length": 128} | how)
    return data.load(kind, folder)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, data.Corpus]:
    """A corpus of each kind, with rows of 128 to 1,024 inputs and 100 values at each depth."""
    folder = tmp_path_factory.mktemp("corpora")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needles, "VALUES", 100)
        patch.setattr(needles, "TRAIN_ROWS", 64)
        patch.setattr(needles, "TIMES", 4)
        return {kind: made(folder, kind) for kind in needles.KINDS}


# ---- the rows


def read_row(tokens: np.ndarray, asked: int) -> tuple[list[re.Match], list[re.Match]]:
    """The needles of a row of bytes and, at its end, the questions with their answers."""
    found = list(NEEDLE.finditer(bytes(tokens.tolist())))
    assert found[-1].end() == len(tokens)
    return found[:-asked], found[-asked:]


@pytest.mark.parametrize("size", [128, 1024])
@pytest.mark.parametrize("kind", needles.KINDS)
def test_each_question_has_its_needle_at_the_distance_given(
    corpora: dict[str, data.Corpus], kind: str, size: int
) -> None:
    about = needles.KINDS[kind]
    for tokens, given in zip(*rows.rows_of(corpora[kind], size), strict=True):
        hidden, questions = read_row(tokens, about.asked)
        assert len(hidden) == about.needles
        assert len({needle[1] for needle in hidden}) == (1 if about.one_key else about.needles)
        distances = np.zeros(len(tokens), dtype=int)
        for number, question in enumerate(questions):
            same = [needle for needle in hidden if needle[1] == question[1]]
            needle = same[number] if about.one_key else same[0]
            assert needle[2] == question[2]
            last = question.end(2) - 2  # the token that predicts the last letter of the value
            distances[slice(*question.span(2))] = last - needle.start()
        assert distances.tolist() == given.tolist()


@pytest.mark.parametrize("kind", needles.KINDS)
def test_every_depth_has_enough_values_at_every_length(
    corpora: dict[str, data.Corpus], kind: str
) -> None:
    for size in rows.sizes(corpora[kind]):
        _, distances = rows.rows_of(corpora[kind], size)
        counts = np.histogram(distances[distances > 0] / size, np.arange(9) / 8)[0] / needles.VALUE
        several = needles.KINDS[kind].asked > 1  # whose lines take much of a short row
        assert (counts == 0).sum() <= (128 // size * 3 if several else 0) + (
            several and size == 256
        )
        assert counts[counts > 0].min() >= 100


def test_a_depth_has_as_many_values_as_a_bin_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LEAST", rows.LEAST)
    corpus = text_corpus(tmp_path / "text")
    kind, generator = needles.KINDS["multi_query"], np.random.default_rng(0)
    writer = needles.Writer(kind, corpus.tokenizer, generator)
    _, distances = needles.validation_rows(writer, corpus.val, 513)
    right = (distances > 0) * 1.0
    found = answers.summary(right[:, 1:], 0 * right[:, 1:], distances[:, 1:])
    assert min(found["by_depth"]["counts"]) >= rows.LEAST == 400
    assert found["by_depth"]["right"] == found["by_depth"]["counts"]
    row = {"protocol": "needles", "length": 512, "trained": 512} | found
    assert answers.reach({512: row}) == 512


def test_a_question_is_never_answered_by_the_text(tmp_path: Path, few: None) -> None:
    crowded = "".join(f"{a}{b}: " for a in needles.LETTERS for b in needles.LETTERS[:-1]).encode()
    corpus = text_corpus(tmp_path / "crowded", text=crowded * 4)
    needles.prepare(tmp_path / "full", corpus, "multi_key", length=1400)
    tokens, _ = rows.rows_of(data.load("full", tmp_path), 2800)
    keys = {needle[1] for row in tokens for needle in NEEDLE.finditer(bytes(row.tolist()))}
    assert keys <= {f"{a}z".encode() for a in needles.LETTERS}  # the only ones not in the text


def test_a_passkey_is_hidden_in_filler(corpora: dict[str, data.Corpus]) -> None:
    tokens, _ = rows.rows_of(corpora["passkey"], 512)
    for row in tokens[:20]:
        (needle,), _ = read_row(row, 1)
        text = bytes(row.tolist()).decode()
        before, filler = text[: needle.start()], needles.FILLER * 8
        assert before in filler and text[needle.end() : -needles.LINE] in filler


def test_keys_and_values_differ_from_row_to_row(corpora: dict[str, data.Corpus]) -> None:
    tokens, _ = rows.rows_of(corpora["single"], 256)
    words = [NEEDLE.search(bytes(row.tolist())) for row in tokens]
    assert len({match[2] for match in words}) > 0.99 * len(words)
    letters = np.frombuffer(b"".join(match[2] for match in words), np.uint8)
    shares = np.bincount(letters - ord("A"), minlength=26) / len(letters)
    assert abs(shares - 1 / 26).max() < 0.02


def test_a_fraction_that_teaches_too_little_is_refused(tmp_path: Path, few: None) -> None:
    with pytest.raises(UserError, match="--needle_fraction=0.049 is not at least 0.05 and at most"):
        made(tmp_path, "single", fraction=0.049)
    assert not (tmp_path / "single").exists()
    assert made(tmp_path, "single", fraction=0.05).meta["rows"]["kind"] == "single needles"


@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_the_fraction_of_training_rows_has_needles_and_every_token_is_trained_on(
    tmp_path: Path, few: None, fraction: float
) -> None:
    corpus = made(tmp_path, "single", fraction=fraction)
    inputs, targets = rows.batch(corpus, 128, 0, 0, 40)
    assert (inputs[:, 1:] == targets[:, :-1]).all() and (targets >= 0).all()
    found = [NEEDLE.findall(bytes(row.tolist())) for row in inputs]
    assert found.count([]) == round(40 * (1 - fraction))
    assert all(len({*lines}) <= 1 for lines in found)  # a needle, and questions for it


@pytest.mark.parametrize("kind", needles.KINDS)
def test_in_training_rows_questions_stand_behind_the_needles(
    tmp_path: Path, few: None, kind: str
) -> None:
    about, counts = needles.KINDS[kind], set()
    for row in made(tmp_path, kind).train.reshape(-1, 129):
        lines = [match.group() for match in NEEDLE.finditer(bytes(row.tolist()))]
        hidden, questions = lines[: about.needles], lines[about.needles :]
        assert len({*hidden}) == about.needles and {*questions} <= {*hidden}
        if about.one_key:
            assert questions == (hidden * 3)[: len(questions)]
        counts.add(len(questions))
    assert counts == set(range(1, max(counts) + 1)) and max(counts) >= about.asked


def test_training_rows_are_of_the_training_split_and_the_others_of_the_validation_split(
    tmp_path: Path, few: None
) -> None:
    splits = {name: [np.full(5000, ord(name[0]), np.uint8)] for name in ("train", "val")}
    about = {"tokenizer": "bytes", "source": "a test", "rule": "as given"}
    data.write_corpus(tmp_path / "text", splits, **about)
    corpus = made(tmp_path, "single")
    for split, letter in (("train", ord("t")), ("val", ord("v"))):
        assert np.bincount(getattr(corpus, split)).argmax() == letter
        assert (getattr(corpus, split) == letter).mean() > 0.5


def test_the_same_seed_makes_the_same_rows(tmp_path: Path, few: None) -> None:
    first, again, other = (
        made(tmp_path, "multi_query", seed=seed).val.tobytes() for seed in (3, 3, 4)
    )
    assert first == again != other


# ---- tokenizers


def test_a_corpus_of_characters_keeps_its_vocabulary(tmp_path: Path, few: None) -> None:
    corpus = text_corpus(tmp_path / "letters", "char")
    needles.prepare(tmp_path / "rows", corpus, "passkey", length=64)
    hidden = data.load("rows", tmp_path)
    assert hidden.meta["characters"] == corpus.meta["characters"]
    text = hidden.tokenizer.decode(rows.rows_of(hidden, 128)[0][0])
    assert text[-needles.LINE :] in text[: -needles.LINE]


def test_letters_are_tokens_of_their_own_in_gpt2s_vocabulary(
    tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = [b" t", b"he", b"qu", b" the"]
    ranks = {piece: rank for rank, piece in enumerate([bytes([i]) for i in range(256)] + merged)}
    special = {"<|endoftext|>": len(ranks)}
    toy = tiktoken.Encoding(
        "toy", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=special
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: toy)
    monkeypatch.setitem(data.VOCABULARIES, "gpt2", toy.n_vocab)
    corpus = text_corpus(tmp_path / "tokens", "gpt2")
    needles.prepare(tmp_path / "rows", corpus, "multi_key", length=128)
    hidden = data.load("rows", tmp_path)
    tokens, distances = rows.rows_of(hidden, 128)
    assert ((distances > 0).sum(axis=1) == needles.VALUE).all()
    for row in tokens:
        assert NEEDLE.fullmatch(hidden.tokenizer.decode_bytes(row[-needles.LINE :]))


# ---- what is refused


@pytest.mark.parametrize(
    "text, how, sentence",
    [
        (b"0123456789" * 99, {}, "text cannot hold needles: character '.n' at place 0"),
        (TEXT[:256], {}, "the validation split of text has 256 tokens, and the longest test 256"),
        (TEXT, {"length": 20}, "--length=20: these needles need at least 27 tokens"),
        (TEXT, {"length": 2**15}, "tests of 65536 tokens are too long"),
    ],
)
def test_what_cannot_hold_needles_is_refused(
    tmp_path: Path, few: None, text: bytes, how: dict, sentence: str
) -> None:
    corpus = text_corpus(tmp_path / "text", "char", text)
    with pytest.raises(UserError, match=sentence):
        needles.prepare(tmp_path / "rows", corpus, "single", **{"length": 128} | how)
    assert not (tmp_path / "rows").exists()


def test_rows_cannot_hold_needles(corpora: dict[str, data.Corpus], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="single has rows of its own: name one of text"):
        needles.prepare(tmp_path / "rows", corpora["single"], "single", length=128)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--name=needles_/x"], "--name=needles_/x must be letters and digits behind 'needles_'"),
        (["--name=books"], "--name=books must be letters and digits behind 'needles_'"),
        (["--seed=-1"], "--seed=-1 must be at least 0"),
        ([], "there is no corpus 'nowhere'"),
    ],
)
def test_a_command_that_cannot_work_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    command = ["prepare.py", "--corpus=nowhere", "--kind=single", *words]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(UserError, match=re.escape(sentence)):
        needles.main()


def test_a_corpus_is_replaced_only_if_that_is_asked_for(
    tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = text_corpus(tmp_path / "text")
    text_corpus(tmp_path / "needles_text")
    monkeypatch.setattr(needles, "HERE", tmp_path)
    monkeypatch.setattr(needles, "load", lambda name: corpus)
    words = ["prepare.py", "--corpus=text", "--kind=single"]
    monkeypatch.setattr("sys.argv", words)
    needles.main()
    meta = tmp_path / "needles_single_text" / "meta.json"
    before = meta.read_bytes()
    monkeypatch.setattr("sys.argv", [*words, "--seed=1"])
    with pytest.raises(UserError, match="needles_single_text is taken: .*replace it with --over"):
        needles.main()
    assert meta.read_bytes() == before
    monkeypatch.setattr("sys.argv", [*words, "--seed=1", "--overwrite"])
    needles.main()
    assert meta.read_bytes() != before
    monkeypatch.setattr("sys.argv", [*words, "--name=needles_text", "--overwrite"])
    with pytest.raises(UserError, match="is a corpus of another kind; choose another name"):
        needles.main()


def test_the_command_makes_a_corpus_with_a_name_of_its_own(
    tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    corpus = text_corpus(tmp_path / "text")
    monkeypatch.setattr(needles, "load", lambda name: corpus)
    monkeypatch.setattr(needles, "HERE", tmp_path)
    monkeypatch.setattr("sys.argv", ["prepare.py", "--corpus=text", "--kind=single"])
    needles.main()
    said = "single needles in 100% of rows of text, seed 0"
    assert f"needles_single_text: {said}" in capsys.readouterr().out
    assert data.load("needles_single_text", tmp_path).meta["rows"]["inputs"] == 128


# ---- what is made of answers


class Window(nn.Module):
    """Answers with the value of the first needle that stands whole in its last `size` tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def answers(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and whether each answer is right."""
        right = []
        for row, t in (targets >= 0).nonzero().tolist():
            seen = bytes(idx[row, max(0, t + 1 - self.size) : t + 1].tolist())
            key, said = re.search(rb"\n([a-z]{2}):([A-Z]{0,3})$", seen).groups()
            needle = re.search(rb"\n" + key + rb":([A-Z]{4})\.", seen)
            right.append(bool(needle) and needle[1][len(said)] == targets[row, t])
        return torch.zeros(len(right)), torch.tensor(right)


def rows_by_length(model: Any, corpus: data.Corpus) -> dict[int, dict]:
    """The rows of results of a model."""
    about = {"protocol": "needles", "trained": 128, "chance": 26**-4}
    return {
        n: about | {"length": n} | answers.measure(model, corpus, n, CPU, ALONE)
        for n in rows.sizes(corpus)
    }


class AnyValue(nn.Module):
    """Answers with the value of the first needle that begins as what was said, whatever its key."""

    def answers(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and whether each letter is right."""
        right = []
        for row, t in (targets >= 0).nonzero().tolist():
            seen = bytes(idx[row, : t + 1].tolist())
            said = re.search(rb":([A-Z]{0,3})$", seen)[1]
            values = [value for _, value in NEEDLE.findall(seen) if value.startswith(said)]
            right.append(bool(values) and values[0][len(said)] == targets[row, t])
        return torch.zeros(len(right)), torch.tensor(right)


@pytest.mark.parametrize("kind, level", [("multi_key", 1 / 4), ("multi_value", 1 / 3)])
def test_a_model_that_ignores_the_key_is_right_in_the_share_of_one_value(
    corpora: dict[str, data.Corpus], kind: str, level: float
) -> None:
    about = corpora[kind].meta["rows"]
    found = answers.measure(AnyValue(), corpora[kind], 256, CPU, ALONE)
    assert found["accuracy"] == pytest.approx(level, abs=0.06) and about["majority"] == level
    counts, right = found["by_depth"]["counts"], found["by_depth"]["right"]
    assert sum(right) / sum(counts) == found["accuracy"] and about["chance"] == 26**-4
    row = {"protocol": "needles", "length": 256, "trained": 256} | found
    assert answers.verdict({256: row}).startswith("not learned")


@pytest.mark.parametrize("kind", ["passkey", "single", "multi_key", "multi_query"])
@pytest.mark.parametrize("size", [128, 256])
def test_a_model_that_sees_only_a_window_is_told_its_window(
    corpora: dict[str, data.Corpus], kind: str, size: int
) -> None:
    found = rows_by_length(Window(size), corpora[kind])
    assert answers.reach(found) == size
    assert f"as far as a model that sees at most its last {size} tokens" in answers.verdict(found)


def test_a_model_that_reads_everything_reaches_the_longest_text(
    corpora: dict[str, data.Corpus],
) -> None:
    assert answers.reach(rows_by_length(Window(10**9), corpora["single"])) == 1024


def test_a_model_that_sees_too_little_has_not_learned(corpora: dict[str, data.Corpus]) -> None:
    assert answers.reach(rows_by_length(Window(100), corpora["multi_key"])) == 0


def test_the_map_of_depths_shows_every_share_and_count(
    corpora: dict[str, data.Corpus], tmp_path: Path
) -> None:
    found = rows_by_length(Window(256), corpora["single"])
    assert answers.has_depths(found)
    bins = found[512]["by_depth"]
    assert bins["edges"] == [k / 8 for k in range(9)] and bins["counts"] == [100] * 8
    assert bins["right"] == [100] * 4 + [0] * 4
    assert plot_answers({"window": [found]}, "needles", tmp_path / "map.svg")
    drawn = (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert drawn.count("<!-- of 100 -->") == 32 and drawn.count("<!-- 1.000 -->") == 8 + 8 + 4 + 2
    assert "reads 256 tokens back" in drawn


def test_a_length_that_was_not_measured_is_left_out_of_the_map(
    corpora: dict[str, data.Corpus], tmp_path: Path
) -> None:
    found = rows_by_length(Window(256), corpora["single"])
    lost = {"protocol": "needles", "nats": None, "reason": "too long", "trained": 128}
    schemes = {"window": [found | {1024: lost}]}
    assert plot_answers(schemes, "needles", tmp_path / "map.svg")
    drawn = (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert drawn.count("<!-- of 100 -->") == 24 and "<!-- 1,024 -->" not in drawn
    assert not answers.has_depths({1024: lost})


def test_several_models_are_drawn_as_curves(
    corpora: dict[str, data.Corpus], tmp_path: Path
) -> None:
    found = rows_by_length(Window(256), corpora["single"])
    assert plot_answers({"one": [found], "two": [found]}, "needles", tmp_path / "both.svg")
    drawn = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert "one: reads 256 tokens back" in drawn and "of 100" not in drawn


# ---- a run

SMALL = ["--pos=alibi", "--block_size=128", "--n_layer=1", "--n_head=2", "--n_embd=16"]
SMALL += ["--max_iters=3", "--batch_size=4", "--compile=False", "--examine=False"]
SMALL += ["--dtype=float32", "--eval_iters=2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with a corpus and needles in it, a run trained on each, and what was printed."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        for name, value in {"TRAIN_ROWS": 40, "TIMES": 3, "VALUES": 20}.items():
            patch.setattr(needles, name, value)
        made(place, "single")
        patch.chdir(place)
        load = data.load
        patch.setattr(data, "load", lambda name, root=place: load(name, root))
        for name in ("single", "text"):
            words = ["--eval_lengths=256,512"]
            patch.setattr("sys.argv", ["train.py", f"--dataset={name}", *SMALL, *words])
            assert train.main() == 0
        yield place, out.getvalue()


def test_a_run_with_needles_is_trained_tested_tabled_and_drawn(trained: Any) -> None:
    place, said = trained
    (folder,) = place.glob("out/alibi-single-*")
    result = load_result(folder)
    assert [row["length"] for row in result["rows"]] == [128, 256, 512]
    for row in result["rows"]:
        assert row["protocol"] == "needles" and row["tokens"] == 4 * sum(row["by_depth"]["counts"])
    assert "A value is right if all its letters are." in said
    assert "alibi: not learned: below 95% at the trained size" in said
    assert (folder / "extrapolation.png").stat().st_size > 10_000


def test_a_run_with_needles_is_tested_on_its_text_too(
    trained: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    place, _ = trained
    monkeypatch.chdir(place)
    (folder,) = place.glob("out/alibi-single-*")
    words = ["--dataset=text", "--eval_lengths=128", "--dtype=float32"]
    monkeypatch.setattr("sys.argv", ["evaluate.py", str(folder), *words])
    evaluate.main()
    assert "text, trained at L = 128; nats per byte" in capsys.readouterr().out


def test_a_run_is_asked_for_the_kind_of_needles_that_it_was_trained_on_and_no_other(
    trained: Any, few: None
) -> None:
    place, _ = trained
    made(place, "passkey")
    needles.prepare(place / "again", data.load("text", place), "single", 128, seed=1)
    (folder,) = place.glob("out/alibi-single-*")
    assert run_corpus(load_run(folder), "again").name == "again"
    with pytest.raises(
        UserError, match="answer passkey needles, and is not asked: train with --dataset=passkey"
    ):
        run_corpus(load_run(folder), "passkey")


def test_a_model_that_was_not_trained_with_needles_is_not_asked(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = trained
    monkeypatch.chdir(place)
    (folder,) = place.glob("out/alibi-text-*")
    never = "trained on text has not learned to answer single needles, and is not asked: .*--dataset=single"
    missing = "needles_x has not been made yet: .*--name=needles_x"
    for name, sentence in (("single", never), ("needles_x", missing)):
        words = [str(folder), f"--dataset={name}", "--dtype=float32"]
        monkeypatch.setattr("sys.argv", ["evaluate.py", *words])
        with pytest.raises(UserError, match=sentence):
            evaluate.main()
