"""Rows with answers: the generator of recall, the tasks, their corpora, and what is made of answers."""

import contextlib
import hashlib
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import data
import data.recall.prepare as recall
import data.tasks.prepare as tasks
import evaluate
import report
import train
from configurable import EvaluateSettings, UserError
from data import rows
from runs import answers
from runs.checkpoint import load_run
from runs.device import CPU
from runs.figures import plot_runs
from runs.processes import ALONE
from runs.results import load_result
from runs.tables import runs_table


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> data.Corpus:
    """A small corpus of recall with rows of 64 to 2,048 inputs."""
    folder = tmp_path_factory.mktemp("corpora") / "recall"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recall, "TRAIN_ROWS", 512)
        recall.prepare(folder, length=64)
    return data.load("recall", folder.parent)


# ---- the generator


def walk(tokens: np.ndarray) -> list[int]:
    """The distance of each answer of a row, by reading it from left to right; -1 for a wrong one."""
    latest: dict[int, tuple[int, int]] = {}
    found = []
    for t, token in enumerate(tokens.tolist()):
        asked = t and recall.QUERY <= tokens[t - 1] < recall.VALUE
        assert bool(asked) == (recall.VALUE <= token < recall.WRITE)
        if token >= recall.WRITE:
            name, value = divmod(token - recall.WRITE, recall.VALUES)
            latest[name] = (t, value)
        if asked:
            time, value = latest.pop(int(tokens[t - 1]) - recall.QUERY)  # once only
            found.append(t - 1 - time if recall.VALUE + value == token else -1)
        else:
            found.append(0)
    return found


@pytest.mark.parametrize("size", [64, 256, 2048])
def test_every_answer_is_the_latest_value_of_its_name_at_the_distance_given(
    corpus: data.Corpus, size: int
) -> None:
    tokens, distances = rows.rows_of(corpus, size)
    for row, given in zip(tokens[:40], distances[:40], strict=True):
        assert walk(row) == given.tolist()


def test_answers_are_as_dense_as_the_docstring_says() -> None:
    generator = np.random.default_rng(0)
    for length, count, wanted in ((128, 400, 12.4), (1024, 50, 13.8)):
        _, distances = recall.make_rows(generator, count, length, length // 128 * recall.PLANNED)
        assert (distances > 0).mean() * 128 == pytest.approx(wanted, abs=0.4)


def test_behind_their_first_tokens_rows_of_all_lengths_are_as_dense(corpus: data.Corpus) -> None:
    shares = []
    for size in rows.sizes(corpus):
        tokens, distances = (part[:, 32:] for part in rows.rows_of(corpus, size))
        shares.append([(tokens >= recall.WRITE).mean(), (distances > 0).mean()])
    assert np.ptp(shares, axis=0).max() < 0.015  # a text begins without values to ask for
    assert np.min(shares) > 0.04


@pytest.mark.parametrize(
    "length, few",
    [
        (64, ()),
        (100, (300, 200)),
        pytest.param(256, (), marks=pytest.mark.slow),
        pytest.param(65, (8, 8), marks=pytest.mark.slow),
    ],
)
def test_every_bin_has_at_least_400_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, few: tuple[int, ...]
) -> None:
    monkeypatch.setattr(recall, "TRAIN_ROWS", 64)
    monkeypatch.setattr(recall, "TEST_ROWS", few or recall.TEST_ROWS)
    recall.prepare(tmp_path / "recall", length)
    corpus = data.load("recall", tmp_path)
    for size in rows.sizes(corpus):
        _, distances = rows.rows_of(corpus, size)
        counts = np.histogram(distances[distances > 0], 2 ** np.arange(size.bit_length()))[0]
        assert counts.min() >= answers.LEAST, (size, counts)


def test_more_test_rows_change_no_row_that_is_drawn_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "TRAIN_ROWS", 8)
    monkeypatch.setattr(recall, "TEST_ROWS", (4, 4))
    made = {}
    for least in (0, 20):
        monkeypatch.setattr(recall, "LEAST", least)
        recall.prepare(tmp_path / str(least), 64, seed=3)
        made[least] = data.load(str(least), tmp_path)
    few, more = made.values()
    assert (few.train == more.train).all() and len(few.val) < len(more.val)
    for size in (64, 128):
        for one, other in zip(rows.rows_of(few, size), rows.rows_of(more, size), strict=True):
            assert (one == other[:4]).all() and len(one) == 4 < len(other)


def test_the_rows_of_the_default_length_are_those_of_the_published_runs() -> None:
    generator = np.random.default_rng(0)
    pairs = [recall.validation_rows(generator, 0, k, 128) for k in range(2)]
    digests = [hashlib.sha256(t.astype("<u2").tobytes()).hexdigest()[:16] for t, _ in pairs]
    assert [len(tokens) for tokens, _ in pairs] == [*recall.TEST_ROWS[:2]]
    assert digests == ["de627bd48888a6fd", "452595232dc5db73"]


def test_the_same_seed_makes_the_same_rows(tmp_path: Path, corpus: data.Corpus) -> None:
    first = recall.make_rows(np.random.default_rng(3), 4, 128, 2)
    again = recall.make_rows(np.random.default_rng(3), 4, 128, 2)
    other = recall.make_rows(np.random.default_rng(4), 4, 128, 2)
    assert (first[0] == again[0]).all() and (first[0] != other[0]).any()


def test_values_of_far_answers_cannot_be_guessed(corpus: data.Corpus) -> None:
    tokens, distances = rows.rows_of(corpus, 2048)
    values = tokens[distances > 64] - recall.VALUE
    shares = np.bincount(values, minlength=recall.VALUES) / len(values)
    assert abs(shares - 1 / recall.VALUES).max() < 0.05


def run_recall(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """The program data/recall/prepare.py."""
    monkeypatch.setattr("sys.argv", ["prepare.py", *words])
    recall.main()


@pytest.fixture
def small_recall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of corpora, in which a small corpus of recall is made soon."""
    monkeypatch.setattr(recall, "HERE", tmp_path)
    monkeypatch.setattr(recall, "TRAIN_ROWS", 8)
    monkeypatch.setattr(recall, "TEST_ROWS", (4, 4))
    monkeypatch.setattr(recall, "LEAST", 20)  # answers in each bin
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--name=books"], "--name=books must begin with 'recall', as in recall_256"),
        (["--name=recall/../books"], "--name=recall/../books must begin with 'recall'"),
        (["--seed=-1"], "--seed=-1 must be at least 0"),
        (["--length=3"], "--length=3: at least 16 inputs are needed"),
    ],
)
def test_a_command_that_cannot_make_rows_is_a_sentence(
    small_recall: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        run_recall(monkeypatch, *words)
    assert not list(small_recall.iterdir())


def test_rows_are_replaced_only_if_that_is_asked_for(
    small_recall: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_recall(monkeypatch)
    before = contents(small_recall / "recall")
    for damaged in (None, "meta.json", "train.bin"):
        if damaged:
            (small_recall / "recall" / damaged).unlink()
            before.pop(damaged)
        with pytest.raises(UserError, match="recall is taken: .*replace it with --overwrite"):
            run_recall(monkeypatch, "--seed=1")
        assert contents(small_recall / "recall") == before
        run_recall(monkeypatch, "--seed=1", "--overwrite")
        assert data.load("recall", small_recall).meta["source"] == "generated from seed 1"
        before = contents(small_recall / "recall")


@pytest.mark.parametrize("lost", [(), ("meta.json", "train_starts.npy", "val_starts.npy")])
def test_a_corpus_of_text_is_never_replaced_by_rows(
    small_recall: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...]
) -> None:
    folder, text = small_recall / "recall_text", [np.frombuffer(b"some text", np.uint8)]
    about = {"tokenizer": "bytes", "source": "a test", "rule": "as given"}
    data.write_corpus(folder, {"train": text, "val": text}, **about)
    for name in lost:  # what is left is a folder such as nanoGPT makes
        (folder / name).unlink()
    before = contents(folder)
    with pytest.raises(UserError, match="is a corpus of another kind; choose another name"):
        run_recall(monkeypatch, "--name=recall_text", "--overwrite")
    assert contents(folder) == before


# ---- the tasks

ANSWERS = {
    "copy": lambda q: q[:-1],
    "reverse": lambda q: q[-2::-1],
    "sort": lambda q: "".join(sorted(q[:-1])),
    "addition": lambda q: str(sum(map(int, q[:-1].split("+")))),
    "addition_reversed": lambda q: str(sum(int(n[::-1]) for n in q[:-1].split("+")))[::-1],
    "addition_hints": lambda q: str(sum(int(n[1::2][::-1]) for n in q[:-1].split("+")))[::-1],
    "parity": lambda q: str(q.count("1") % 2),
    "flipflop": lambda q: q[q.rindex("w") + 1],
    "induction": lambda q: q[q.index(q[-1]) + 1],
}


@pytest.mark.parametrize("name", tasks.TASKS)
@pytest.mark.parametrize("size", [1, 2, 20, 60])
def test_the_answers_of_a_task_are_right(name: str, size: int) -> None:
    make, _ = tasks.TASKS[name]
    generator = np.random.default_rng(size)
    for _ in range(30):
        question, answer = make(generator, size)
        shown = answer[1::2] if name == "addition_hints" else answer
        assert shown == ANSWERS[name](question)


def test_all_tasks_are_corpora_that_make_themselves() -> None:
    assert set(data.TASKS) == set(tasks.TASKS)
    assert set(data.TASKS) | {"recall", "stdlib", "digits"} == set(data.OFFLINE)


def test_a_row_of_a_task_scores_answer_and_full_stop() -> None:
    tokens, scored = tasks.make_rows(tasks.copy, np.random.default_rng(0), [3, 1])
    texts = [bytes(row.tolist()).decode() for row in tokens]
    assert texts[0][:3] == texts[0][4:7] and texts[0][7] == "." and texts[1].endswith("\n" * 4)
    assert scored.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0, 0]]


def test_no_training_row_is_as_long_as_those_only_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TRAIN_ROWS", 200)
    monkeypatch.setattr(tasks, "TEST_ROWS", 5)
    tasks.prepare(tmp_path / "reverse")
    corpus = data.load("reverse", tmp_path)
    inputs, _ = rows.batch(corpus, corpus.meta["rows"]["inputs"], 0, 0, 200)
    words = [bytes(row.tolist()).split(b">")[0] for row in inputs]
    assert {len(word) for word in words} == set(range(1, tasks.TRAINED + 1))
    for size in rows.sizes(corpus):
        tokens, _ = rows.rows_of(corpus, size)
        assert {len(bytes(row.tolist()).split(b">")[0]) for row in tokens} == {size}


def test_an_unknown_task_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["prepare.py", "juggle"])
    with pytest.raises(UserError, match="there is no task juggle, only copy, reverse"):
        tasks.main()


def test_tasks_are_made_by_name_and_seed_and_help_is_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name, value in (("TRAIN_ROWS", 40), ("TEST_ROWS", 5), ("HERE", tmp_path)):
        monkeypatch.setattr(tasks, name, value)
    monkeypatch.setattr("sys.argv", ["prepare.py", "reverse", "--seed=3", "induction"])
    tasks.main()
    assert {path.name for path in tmp_path.iterdir()} == {"reverse", "induction"}
    assert data.load("reverse", tmp_path).meta["source"].endswith("from seed 3")
    monkeypatch.setattr("sys.argv", ["prepare.py", "--seed=-1"])
    with pytest.raises(UserError, match="--seed=-1 must be at least 0"):
        tasks.main()
    monkeypatch.setattr("sys.argv", ["prepare.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        tasks.main()
    assert ended.value.code == 0 and "--seed" in capsys.readouterr().out


def test_the_chance_of_induction_is_that_of_a_symbol_with_one_before_it() -> None:
    make, chance = tasks.TASKS["induction"]
    generator, right = np.random.default_rng(0), 0
    for _ in range(4000):
        question, answer = make(generator, tasks.TRAINED)
        symbols = question[1:].split(">")[0]
        right += symbols[generator.integers(len(symbols))] == answer
    assert right / 4000 == pytest.approx(chance, abs=0.015)
    assert chance == 1 / 20


def made_task(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> data.Corpus:
    """A task with few rows for training."""
    monkeypatch.setattr(tasks, "TRAIN_ROWS", 40)
    tasks.prepare(folder / name)
    return data.load(name, folder)


class Bits(nn.Module):
    """Answers flipflop as `say` says of the instructions, and writes the full stop behind it."""

    def __init__(self, say: Any) -> None:
        super().__init__()
        self.say = say

    def answers(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and whether each scored token is right."""
        right = []
        for row, wanted in zip(idx.tolist(), targets.tolist(), strict=True):
            text = bytes(row).decode().split("r")[0]
            said = f"{self.say(text)}.".encode()
            asked = [target for target in wanted if target >= 0]
            right += [a == b for a, b in zip(said, asked, strict=True)]
        return torch.zeros(len(right)), torch.tensor(right)


def solved(say: Any, corpus: data.Corpus) -> dict[int, dict]:
    """The rows of results of `Bits`."""
    about = {"protocol": "exact_match", "trained": tasks.TRAINED}
    return {
        n: about | {"length": n} | answers.measure(Bits(say), corpus, n, CPU, ALONE)
        for n in rows.sizes(corpus)
    }


def last_bit(text: str) -> str:
    """The bit that was written last, 0 if none was."""
    return text[text.rfind("w") + 1] if "w" in text else "0"


def test_a_window_as_long_as_the_training_rows_does_not_solve_long_flipflop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = made_task(tmp_path, "flipflop", monkeypatch)
    assert answers.reach(solved(last_bit, corpus)) == 60
    window = solved(lambda text: last_bit(text[-2 * tasks.TRAINED :]), corpus)
    assert answers.learned(window) == 1.0 and answers.reach(window) <= 25
    assert answers.share(window[60]) == pytest.approx(1 / 3 + 2 / 3 / 2, abs=0.06)
    generator = np.random.default_rng(0)
    long = [tasks.flipflop(generator, 4 * tasks.TRAINED) for _ in range(400)]
    right = np.mean([last_bit(q[:-1][-2 * tasks.TRAINED :]) == a for q, a in long])
    assert right < 0.75


def test_flipflop_by_majority_is_as_good_as_said_and_not_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = made_task(tmp_path, "flipflop", monkeypatch)
    found = solved(lambda text: int(text.count("w1") > text.count("w0")), corpus)
    said = corpus.meta["rows"]["majority"]
    assert answers.share(found[20]) == pytest.approx(said, abs=0.06) and 0.6 < said < 0.9
    assert answers.verdict(found) == "not learned: below 95% at the trained size"
    assert made_task(tmp_path, "copy", monkeypatch).meta["rows"]["majority"] is None


# ---- the corpus


def test_training_rows_are_read_once_in_an_epoch_and_in_an_order_of_the_seed(
    corpus: data.Corpus,
) -> None:
    inputs, targets = rows.batch(corpus, corpus.meta["rows"]["inputs"], 7, 0, 512)
    assert inputs.shape == targets.shape == (512, 64)
    assert len(np.unique(inputs, axis=0)) == 512
    part, _ = rows.batch(
        corpus, corpus.meta["rows"]["inputs"], 7, 500, 24
    )  # across the end of an epoch
    assert (part[:12] == inputs[500:]).all()
    assert (rows.batch(corpus, corpus.meta["rows"]["inputs"], 8, 0, 512)[0] != inputs).any()


def test_only_answers_are_targets(corpus: data.Corpus) -> None:
    inputs, targets = rows.batch(corpus, corpus.meta["rows"]["inputs"], 0, 0, 64)
    asked = (inputs >= recall.QUERY) & (inputs < recall.VALUE)
    assert ((targets >= 0) == asked).all()
    shown = targets[targets >= 0]
    assert ((shown >= recall.VALUE) & (shown < recall.WRITE)).all()


def test_damaged_answers_are_named(tmp_path: Path, corpus: data.Corpus) -> None:
    for path in corpus.folder.iterdir():
        (tmp_path / "recall").mkdir(exist_ok=True)
        (tmp_path / "recall" / path.name).write_bytes(path.read_bytes())
    broken = data.load("recall", tmp_path)
    np.save(broken.folder / "val_answers.npy", np.zeros(3, np.uint16))
    with pytest.raises(UserError, match=r"val_answers.npy does not have a number for each token"):
        rows.rows_of(broken, 64)
    (broken.folder / "train_answers.npy").unlink()
    with pytest.raises(UserError, match=r"train_answers.npy is missing"):
        rows.batch(broken, broken.meta["rows"]["inputs"], 0, 0, 1)


def kind_of(kind: str, name: str = "mine") -> Any:
    """A corpus of rows of this kind; "" for one made before kinds were recorded, "text" for text."""
    meta = {"rows": {"kind": kind} if kind else {}} if kind != "text" else {}
    return SimpleNamespace(name=name, meta=meta)


@pytest.mark.parametrize(
    "trained, asked, good",
    [
        (kind_of("single needles"), kind_of("single needles", "other"), True),
        (kind_of("single needles"), kind_of("text"), True),
        (kind_of("reverse"), kind_of("single needles"), False),
        (kind_of("single needles"), kind_of("multi_key needles"), False),
        (kind_of("text"), kind_of("reverse"), False),
        (kind_of("", "recall"), kind_of("", "recall"), True),
        (kind_of("", "recall"), kind_of("recall", "recall_256"), True),
        (kind_of("", "reverse"), kind_of("single needles"), False),
        (kind_of("", "reverse"), kind_of("", "needles_single"), False),
        (kind_of("text"), kind_of("", "needles_single"), False),
    ],
)
def test_a_run_is_asked_only_for_rows_of_the_kind_that_it_was_trained_on(
    trained: Any, asked: Any, good: bool
) -> None:
    refused = pytest.raises(UserError, match="mine|recall|reverse")
    with contextlib.nullcontext() if good else refused:
        rows.check_asked(trained, asked)


def test_another_training_length_than_that_of_the_rows_is_refused(corpus: data.Corpus) -> None:
    rows.check_length(corpus, 64)
    with pytest.raises(UserError, match="rows of recall have 64 inputs: say --block_size=64"):
        rows.check_length(corpus, 128)


# ---- what is made of answers


class Window(nn.Module):
    """Answers rightly what was written among its last `size` tokens; beyond that it guesses 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def answers(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and whether each answer is right."""
        right = []
        for row, wanted in zip(idx.tolist(), targets.tolist(), strict=True):
            latest: dict[int, tuple[int, int]] = {}
            for t, (token, target) in enumerate(zip(row, wanted, strict=True)):
                if token >= recall.WRITE:
                    name, value = divmod(token - recall.WRITE, recall.VALUES)
                    latest[name] = (t, value)
                if target >= 0:
                    time, value = latest[token - recall.QUERY]
                    seen = t - time < self.size
                    right.append((value if seen else 0) == target - recall.VALUE)
        return torch.zeros(len(right)), torch.tensor(right)


def rows_by_length(model: Any, corpus: data.Corpus) -> dict[int, dict]:
    """The rows of results of a model."""
    return {
        n: {"protocol": "recall", "length": n, "trained": 64, "counted": {}}
        | answers.measure(model, corpus, n, CPU, ALONE)
        for n in rows.sizes(corpus)
    }


@pytest.mark.parametrize("size", [64, 128, 512])
def test_a_model_that_sees_only_a_window_is_told_its_window_in_so_many_words(
    corpus: data.Corpus, size: int
) -> None:
    found = rows_by_length(Window(size), corpus)
    assert answers.reach(found) == size
    assert f"as far as a model that sees at most its last {size} tokens" in answers.verdict(found)


def test_the_legends_name_the_numbers_of_the_rules() -> None:
    for function in (answers.size_lines, answers.distance_lines):
        words = " ".join(function.__doc__.split())
        assert f"{answers.HELD * 100:.0f} %" in words and f"{answers.LEARNED * 100:.0f} %" in words
    assert f"it has {answers.LEAST} answers" in words


def test_a_model_that_reads_everything_reaches_the_longest_text(corpus: data.Corpus) -> None:
    assert answers.reach(rows_by_length(Window(10**9), corpus)) == 2048


def test_the_verdict_names_the_length_in_which_it_reads_farthest(corpus: data.Corpus) -> None:
    found = rows_by_length(Window(10**9), corpus)
    longest = "reads at least 2048 tokens back, the longest tested, in texts of 2048"
    assert answers.verdict(found) == longest
    assert answers.verdict({n: found[n] for n in (64, 512)}) == longest.replace("2048", "512")
    found[2048] = rows_by_length(Window(256), corpus)[2048]
    said = answers.verdict({n: found[n] for n in (64, 512, 2048)})
    assert said == "reads 512 tokens back in texts of 512, and 256 in texts of 2048"
    found[2048] = {"protocol": "recall", "nats": None, "reason": "too long", "trained": 64}
    assert answers.verdict(found) == longest.replace("2048", "1024")
    seen = answers.verdict(rows_by_length(Window(128), corpus))
    assert seen.startswith("reads 128 tokens back in texts of 2048: as far as a model that sees")


class Counting(nn.Module):
    """Answers with the value that was written most often under the name, less the times it was the
    answer (no write is asked for twice), whatever the order.
    """

    def answers(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and whether each answer is right."""
        right = []
        for row, wanted in zip(idx.tolist(), targets.tolist(), strict=True):
            left = np.zeros((recall.NAMES, recall.VALUES))
            for token, target in zip(row, wanted, strict=True):
                if token >= recall.WRITE:
                    left[divmod(token - recall.WRITE, recall.VALUES)] += 1
                if target >= 0:
                    of_name = left[token - recall.QUERY]
                    right.append(of_name.argmax() == target - recall.VALUE)
                    of_name[target - recall.VALUE] -= 1
        return torch.zeros(len(right)), torch.tensor(right)


def test_a_model_without_order_is_as_good_as_said_and_has_not_learned(corpus: data.Corpus) -> None:
    found, rows = rows_by_length(Counting(), corpus), corpus.meta["rows"]
    assert found[64]["accuracy"] == pytest.approx(rows["majority"], abs=0.01)
    assert 0.95 < rows["majority"] < 0.99  # above what is asked of a model: so it must be compared
    known = {n: row | {"counted": rows["counted"][str(n)]} for n, row in found.items()}
    assert answers.reach(found) > 64 and answers.reach(known) == 0
    assert answers.verdict(known).startswith("not learned: no better than counting without order")


def test_order_within_a_window_and_counting_beyond_is_not_read_beyond_the_window() -> None:
    row = made_row([4000, 4000, 4000], [4000, 3990, 3800], length=8, trained=2)
    assert answers.reach_in(row, 1.0) == 8
    counted = {"1": 0.9, "2": 0.9, "4": 0.95}  # counting is as good from 4 on
    assert answers.reach_in(row | {"counted": counted}, 1.0) == 4
    assert answers.reach_in(row | {"counted": counted, "trained": 8}, 1.0) == 8  # learned covers it


def ordered_count(row: list[int], distances: list[int], within: int) -> list[float]:
    """What `recall.counted` says of one row, by the list of all writes that still count."""
    writes: list[list[int]] = []  # name, value, place, whether a question took it
    right = [0.0] * len(row)
    for t, token in enumerate(row):
        if token >= recall.WRITE:
            name, value = divmod(token - recall.WRITE, recall.VALUES)
            before = [w for w in writes if w[0] == name]
            if before and not before[-1][3] and t - before[-1][2] < within:
                before[-1][1] = -1  # it is known to be replaced
            writes.append([name, value, t, False])
        elif distances[t]:
            name, value = row[t - 1] - recall.QUERY, token - recall.VALUE
            of_name = [w for w in writes if w[0] == name]
            left = [sum(w[1] == v for w in of_name) for v in range(recall.VALUES)]
            for w in of_name:
                left[w[1]] -= w[3] and w[1] >= 0
            best = [v for v, n in enumerate(left) if n == max(left)]
            near = distances[t] < within
            right[t] = 1.0 if near else (value in best) / len(best)
            of_name[-1][3] = True
    return right


@pytest.mark.parametrize("within", [0, 16, 64])
def test_counting_with_order_within_a_window_is_what_a_list_of_writes_gives(
    corpus: data.Corpus, within: int
) -> None:
    tokens, distances = (x[:4].astype(int) for x in rows.rows_of(corpus, 512))
    found = recall.counted(tokens, distances, within)
    pairs = zip(tokens.tolist(), distances.tolist(), strict=True)
    assert np.allclose(found, [ordered_count(*pair, within) for pair in pairs])


def test_reach_does_not_show_that_the_order_of_far_text_is_known(corpus: data.Corpus) -> None:
    shares = recall.counted_by_distance(*rows.rows_of(corpus, 512), within=64)
    edges, right = [*shares, 512], [round(10**4 * share) for share in shares.values()]
    bins = {"edges": edges, "counts": [10**4] * len(shares), "right": right}
    row = {"length": 512, "trained": 64, "by_distance": bins}
    row["counted"] = recall.counted_by_distance(*rows.rows_of(corpus, 512))
    assert answers.reach_in(row, 1.0) == 512  # the pages say so: results/board/README.md


def test_rows_without_what_counting_answers_are_told(corpus: data.Corpus) -> None:
    found = rows_by_length(Window(128), corpus)
    told = answers.verdict({n: {**row} for n, row in found.items()})
    for row in found.values():
        del row["counted"]
    assert answers.verdict(found) == f"{told}, not compared with counting: evaluate it again"


def test_a_model_that_guesses_has_not_learned(corpus: data.Corpus) -> None:
    found = rows_by_length(Window(20), corpus)
    assert answers.reach(found) == 0
    assert answers.verdict(found) == "not learned: below 95% at the trained size"


def made_row(counts: list[int], right: list[int], **more: Any) -> dict:
    """A row of results with bins 1, 2, 4 ..."""
    edges = [2**k for k in range(len(counts) + 1)]
    bins = {"edges": edges, "counts": counts, "right": right}
    about = {"nats": 0.1, "accuracy": 1.0, "length": 128, "trained": 128}
    return about | {"by_distance": bins} | more


def test_a_bin_with_too_few_answers_ends_the_reach() -> None:
    assert answers.reach_in(made_row([400, 399], [400, 399]), 1.0) == 2
    assert answers.reach_in(made_row([399, 999], [399, 999]), 1.0) == 0


def test_a_bin_counts_only_with_the_lower_end_of_its_interval() -> None:
    assert answers.reach_in(made_row([400], [370]), 1.0) == 0  # 92.5 %, but at least 89.5 %
    assert answers.reach_in(made_row([4000], [3700]), 1.0) == 2


def test_the_interval_is_wilsons() -> None:
    low, high = answers.interval(81, 263)  # 0.2553 and 0.3662 in Newcombe 1998, table I
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = answers.interval(0, 20)
    assert low == pytest.approx(0, abs=1e-12) and round(high, 4) == 0.1611


def summed(distances: list[list[int]], right: list[list[int]]) -> dict:
    """The summary of answers at these distances."""
    nats = np.ones(np.shape(right))
    return answers.summary(np.array(right, float), nats, np.array(distances))


def test_near_bins_with_too_few_answers_are_joined() -> None:
    distances = [3] * 150 + [5] * 150 + [9] * 150 + [70] * 10
    apart = [[n for distance in distances for n in (distance, 0)]]  # answers of one token
    found = summed(apart, [[1, 0] * 460])["by_distance"]
    assert found["edges"] == [2, 16, 32, 64, 128]  # 2 to 4, 4 to 8 and 8 to 16 are one
    assert found["counts"] == [450, 0, 0, 10]
    assert summed([[3, 0, 9]], [[1, 0, 1]])["by_distance"]["edges"] == [2, 16]


def test_tokens_next_to_each_other_are_one_answer_that_is_right_only_as_a_whole() -> None:
    distances = [[0, 5, 5, 5, 0, 5, 5, 5], [2, 2, 2, 0, 0, 0, 0, 2], [2, 2, 2, 0, 0, 0, 0, 0]]
    right = [[0, 1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0, 0, 0]]
    found = summed(distances, right)
    assert found["tokens"] == 13 and found["accuracy"] == 3 / 5 and found["exact"] == 1
    assert found["by_distance"] == {"edges": [2, 8], "counts": [5], "right": [3]}
    assert found["by_depth"]["counts"] == [0, 0, 3, 0, 0, 2, 0, 0]
    assert found["by_depth"]["right"] == [0, 0, 2, 0, 0, 1, 0, 0]


def test_a_map_of_depths_is_drawn_of_needles_and_of_nothing_else(corpus: data.Corpus) -> None:
    found = rows_by_length(Window(10**9), corpus)
    assert not answers.has_depths(found)
    needles = {n: row | {"protocol": "needles"} for n, row in found.items()}
    assert answers.has_depths(needles)
    assert not answers.has_depths({n: row | {"nats": None} for n, row in needles.items()})


def test_a_loss_that_is_not_finite_is_a_finding() -> None:
    nats = np.array([[0.0, math.inf]])
    found = answers.summary(np.zeros((1, 2)), nats, np.array([[0, 3]]))
    assert found["nats"] is None and found["diverged"] and "1 losses" in found["reason"]


def test_exact_match_is_what_greedy_writing_gives(tmp_path: Path) -> None:
    from model import GPT, GPTConfig

    torch.manual_seed(0)
    size = {"block_size": 32, "vocab_size": 12, "n_layer": 1, "n_head": 2, "n_embd": 16}
    model = GPT(GPTConfig(**size, pos="rope")).eval()
    generator = np.random.default_rng(0)
    prompts = torch.from_numpy(generator.integers(12, size=(40, 6)))
    written = model.generate(prompts, max_new_tokens=3, top_k=1)
    written[::2, -1] = (written[::2, -1] + 1) % 12  # every second text is not what it would write
    targets = written[:, 1:].clone()
    targets[:, :5] = -1
    with torch.no_grad():
        _, right = model.answers(written[:, :-1], targets)
    whole = right.view(40, 3).all(1)
    assert whole.tolist() == [k % 2 == 1 for k in range(40)]


def test_losses_of_answers_equal_the_losses_of_all_tokens() -> None:
    from model import GPT, GPTConfig

    torch.manual_seed(0)
    size = {"block_size": 16, "vocab_size": 9, "n_layer": 1, "n_head": 2, "n_embd": 16}
    model = GPT(GPTConfig(**size, pos="alibi")).eval()
    idx = torch.randint(9, (3, 16))
    targets = torch.randint(9, (3, 16)).where(torch.rand(3, 16) < 0.3, -1)
    with torch.no_grad():
        nats, right = model.answers(idx, targets)
        every = model.losses(idx, targets)
        logits, _ = model(idx, targets)
    torch.testing.assert_close(nats, every[targets >= 0])
    assert (right == (logits.argmax(-1) == targets)[targets >= 0]).all()


# ---- a run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: data.Corpus) -> Any:
    """A folder in which two small runs were trained on rows, and what was printed of the first."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(data, "load", lambda name: corpus)
        patch.chdir(place)
        for pos in ("rope", "alibi"):
            patch.setattr("sys.argv", ["train.py", f"--pos={pos}", *SMALL])
            assert train.main() == 0
        yield place, out.getvalue()


SMALL = ["--dataset=recall", "--block_size=64", "--n_layer=1", "--n_head=2", "--n_embd=16"]
SMALL += [
    "--max_iters=4",
    "--batch_size=4",
    "--compile=False",
    "--examine=False",
    "--dtype=float32",
]
SMALL += ["--eval_iters=2"]


def test_a_run_on_rows_is_trained_tested_tabled_and_drawn(trained: Any) -> None:
    place, said = trained
    (folder,) = place.glob("out/rope-*")
    result = load_result(folder)
    assert [row["length"] for row in result["rows"]] == [64 << k for k in range(6)]
    for row in result["rows"]:
        assert row["protocol"] == "recall" and 0 <= row["accuracy"] <= 1
        assert sum(row["by_distance"]["counts"]) == row["tokens"]
    assert "rope: not learned: below 95% at the trained size" in said
    first = result["rows"][0]
    assert (
        f"recall at 64: {first['nats']:.4f} nats per char, {first['accuracy']:.1%} right\n" in said
    )
    assert (folder / "extrapolation.png").stat().st_size > 10_000
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert "val_loss" in json.loads(lines[-1])


def test_a_result_without_the_level_of_majority_is_printed(
    trained: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (folder,) = trained[0].glob("out/rope-*")
    older = load_result(folder)
    for row in older["rows"]:
        del row["majority"]
        row["by_distance"]["answers"] = row["by_distance"]["counts"]
    said = runs_table([older])
    assert "a guess is right in 25.0%\n" in said and "majority" not in said
    assert plot_runs([older], tmp_path / "older.svg")


def test_a_finished_run_on_rows_is_not_trained_again(
    trained: Any, corpus: data.Corpus, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(trained[0])
    monkeypatch.setattr(data, "load", lambda name: corpus)
    monkeypatch.setattr("sys.argv", ["train.py", "--pos=rope", *SMALL])
    assert train.main() == 0
    said = capsys.readouterr().out
    levels = "a guess is right in 25.0%, by majority of what was written in 9"
    assert "step" not in said and f"recall, trained at 64; {levels}" in said


def test_the_validation_loss_is_that_of_the_answers_alone(
    trained: Any, corpus: data.Corpus
) -> None:
    (folder,) = trained[0].glob("out/rope-*")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", lambda name: corpus)
        run = load_run(folder)
    inputs, targets = map(torch.from_numpy, rows.validation(corpus, 64, 8))
    with torch.no_grad():
        losses = run.model.losses(inputs, targets)
    wanted = float(losses.double().sum() / (targets >= 0).sum())
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["val_loss"] == pytest.approx(wanted, rel=1e-6)


def test_several_runs_on_rows_share_a_table_and_a_figure(
    trained: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(trained[0])
    folders = sorted(str(path) for path in Path("out").glob("*-*"))
    monkeypatch.setattr("sys.argv", ["report.py", *folders, "--out=both.png"])
    report.main()
    said = capsys.readouterr().out
    assert "recall, mean over seeds; a reach of 0: not learned" in said
    assert Path("both.png").stat().st_size > 10_000


def test_asked_lengths_that_no_row_has_are_named(
    trained: Any, corpus: data.Corpus, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (folder,) = trained[0].glob("out/rope-*")
    monkeypatch.setattr(data, "load", lambda name: corpus)
    model = load_run(folder).model
    note = (
        "note: recall has rows of [64, 128, 256, 512, 1024, 2048] only; other lengths are left out"
    )
    tester = evaluate.Tester(model, corpus)
    about = {"train_length": 64, "step": 0, "checkpoint": ""}
    settings = EvaluateSettings(eval_lengths=(256, 300, 64))
    found = evaluate.evaluate(tester, about, settings)
    assert [row["length"] for row in found["rows"]] == [64, 256]
    assert note in capsys.readouterr().out
    for lengths in ((), (64, 128)):
        evaluate.evaluate(tester, about, EvaluateSettings(eval_lengths=lengths))
    assert "note" not in capsys.readouterr().out
    settings = EvaluateSettings(eval_lengths=(64,))
    evaluate.evaluate(tester, about | {"train_length": 32}, settings)
    assert "recall is made for 64, the model is trained at 32" in capsys.readouterr().out


def test_rows_refuse_what_needs_other_lengths(
    corpus: data.Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(data, "load", lambda name: corpus)
    monkeypatch.chdir(tmp_path)
    for words in (["--block_size=32"], ["--mixed_lengths=32,64"]):
        monkeypatch.setattr("sys.argv", ["train.py", "--pos=rope", *SMALL, *words])
        with pytest.raises(UserError, match="have 64 inputs: say --block_size=64"):
            train.main()
