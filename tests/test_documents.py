"""Rows that never cross a document, --documents=pad, and how many cross one without it."""

import math
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SIZE, TEXT, call, write_bytes

import train
from common.errors import UserError
from configurable import GPTConfig
from data import batches
from data.corpus import Corpus, crossing, load_corpus
from model import GPT
from run.checkpoint import checkpoint_paths
from run.folder import RunFolder, read_config
from run.load import load_run
from run.log import logged
from tables.records import load_rows

L = 16
# lengths of documents: of one token, shorter than a row, full rows, one target more, several rows
LENGTHS = [(1, 2, L - 1, L, L + 1, L + 2, 1, 2 * L + 1, 60), (L + 1, 1), (1, 5), (40,) * 9]


def corpus(lengths: tuple[int, ...]) -> Corpus:
    """A corpus in memory whose documents have these lengths; its tokens are 1, 2, 3 ..."""
    tokens = np.arange(1, sum(lengths) + 1)
    starts = np.array([0, *accumulate(lengths[:-1])])
    return Corpus("toy", Path("nowhere"), {}, tokens, tokens, starts, starts)


def rows_by_hand(lengths: tuple[int, ...]) -> list[list[int]]:
    """Each document cut into rows of L inputs, with the target of the last one: lists of tokens."""
    rows = []
    first = 1
    for n in lengths:
        document = list(range(first, first + n))
        first += n
        while len(document) > 1:
            rows.append(document[: L + 1])
            document = document[L:]
    return rows


def unpadded(inputs: np.ndarray, targets: np.ndarray) -> list[list[int]]:
    """Rows as in `rows_by_hand`, after which there is nothing but padding, 0 and -1."""
    rows = []
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
        size = sum(target > 0 for target in y)
        row = [x[0], *y[:size]]
        assert x == (row + L * [0])[:L] and y == (row[1:] + L * [-1])[:L]
        rows.append(row)
    return rows


# ---- the rows


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_an_epoch_of_documents_has_each_target_once_and_no_row_crosses(lengths: tuple):
    rows = rows_by_hand(lengths)
    toy = corpus(lengths)
    orders = []
    for epoch in range(3):
        found = unpadded(*batches.batch(toy, L, 7, epoch * len(rows), len(rows), "pad"))
        assert sorted(found) == sorted(rows)
        orders.append(found)
    assert len(rows) < 6 or orders[0] != orders[1]
    targets = sorted(token for row in rows for token in row[1:])
    assert targets == sorted({*toy.train.tolist()} - {*(toy.train_starts + 1).tolist()})
    places = sum(len(row) - 1 for row in rows) / (L * len(rows))
    assert batches.padding(toy, L) == pytest.approx(1 - places)
    # all of validation, or some of it in order
    assert unpadded(*batches.validation(toy, L, 1000, "pad")) == rows
    few = unpadded(*batches.validation(toy, L, 2, "pad"))
    assert few == [rows[k] for k in batches.evenly(len(rows), 2)]


def test_a_row_depends_on_the_seed_and_its_number_alone():
    toy = corpus(LENGTHS[0])

    def rows(seed: int, first: int, count: int) -> np.ndarray:
        return np.concatenate(batches.batch(toy, L, seed, first, count, "pad"), axis=1)

    stream = rows(1, 0, 80)
    assert (rows(1, 33, 47) == stream[33:]).all()
    halves = [rows(1, 8 * k + 4 * r, 4) for k in range(10) for r in range(2)]  # two processes
    assert (np.concatenate(halves) == stream).all()
    assert (rows(2, 0, 80) != stream).any()


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("length", [2, 7, L])
def test_the_share_that_crosses_is_that_of_rows_with_a_target_of_another_document(lengths, length):
    owner = np.repeat(np.arange(len(lengths)), lengths)
    rows = [owner[k : k + length + 1] for k in range(0, len(owner), length)]
    crossed = np.mean([row[0] != row[-1] for row in rows])
    edges = batches.document_edges(corpus(lengths), "train")
    assert crossing(edges, length) == pytest.approx(crossed)


@pytest.mark.parametrize("pos", ["learned", "rope + logn", "t5", "fox", "chunks(size=5)", "cope"])
def test_the_losses_of_a_row_are_those_of_the_document_alone(pos: str):
    torch.manual_seed(0)
    model = GPT(GPTConfig(pos=pos, n_layer=2, n_head=2, n_embd=16, block_size=L)).double().eval()
    x, y = (torch.from_numpy(z) for z in batches.validation(corpus((5, 9, L + 4)), L, 9, "pad"))
    losses = model.losses(x, y)
    sizes = [4, 8, L, 3]
    assert (y >= 0).sum(1).tolist() == sizes
    for row, size in enumerate(sizes):
        alone = model.losses(x[row : row + 1, :size], y[row : row + 1, :size])
        assert torch.allclose(losses[row, :size], alone[0], atol=1e-12)
        assert (losses[row, size:] == 0).all()


# ---- training

DOCUMENTS = [TEXT[k * k : k * k + 3 + 7 * k % 45] for k in range(60)]  # 3 to 47 bytes


@pytest.fixture
def paged(corpora: Path, here: None) -> Path:
    """The corpus `paged`: short documents, and a long one in the validation split, for the tests."""
    if not (corpora / "paged").exists():
        write_bytes(corpora / "paged", DOCUMENTS, [*DOCUMENTS[::-1], TEXT])
    return corpora


def run(*words: str) -> int:
    """Train a small run in this process on rows that never cross a document."""
    return call(train, *SIZE, "--dataset=paged", "--documents=pad", *words)


def test_a_step_has_the_mean_loss_of_its_real_targets_however_it_is_split(paged: Path):
    run("--batch_size=8", "--out_dir=none", "--max_iters=0")
    trained = load_run("none", "cpu")
    x, y = (torch.from_numpy(z) for z in batches.batch(trained.corpus, 16, 1337, 0, 8, "pad"))
    counts = (y >= 0).sum(1)
    assert len(set(counts.tolist())) > 2  # rows differ in how many targets they have
    mean = trained.model.losses(x, y)[y >= 0].mean()
    mean.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained.model.parameters(), math.inf)
    for folder, words in (
        ("one", ["--batch_size=8"]),
        ("four", ["--batch_size=2", "--gradient_accumulation_steps=4"]),
    ):
        run(*words, f"--out_dir={folder}")
        first = logged(folder)[0]
        assert first["loss"] == pytest.approx(mean.item(), rel=1e-6)
        assert first["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    for line, other in zip(logged("one"), logged("four"), strict=True):
        assert other["loss"] == pytest.approx(line["loss"], rel=1e-4)


def test_validation_is_the_mean_over_the_targets_of_documents(paged: Path):
    run("--out_dir=run", "--eval_iters=200")
    trained = load_run("run", "cpu")
    starts = [*trained.corpus.val_starts, len(trained.corpus.val)]
    losses = []
    for first, end in zip(starts, starts[1:], strict=False):
        for a in range(first, end - 1, 16):
            tokens = torch.from_numpy(trained.corpus.val[a : min(a + 17, end)].astype(int))[None]
            losses += trained.model.losses(tokens[:, :-1], tokens[:, 1:]).flatten().tolist()
    assert len(losses) == len(trained.corpus.val) - len(trained.corpus.val_starts)
    assert train.estimate_loss(trained) == pytest.approx(np.mean(losses), rel=1e-6)
    assert logged("run")[-1]["val_loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_a_run_of_documents_says_its_padding_and_counts_tokens_without_it(
    paged: Path, capsys: pytest.CaptureFixture
):
    run("--out_dir=padded")
    _, y = batches.batch(load_corpus("paged"), 16, 1337, 0, 10_000, "pad")
    share = read_config("padded")["padding"]
    assert share == pytest.approx((y < 0).mean(), abs=0.01) and share > 0.1
    assert f"no row crosses documents: {share:.1%} of the inputs are" in capsys.readouterr().out
    assert logged("padded")[-1]["tokens"] == round(8 * 4 * 16 * (1 - share))
    run("--documents=cross", "--out_dir=crossed")
    edges = np.append(load_corpus("paged").train_starts, len(load_corpus("paged").train))
    expected = f"windows cross documents: {crossing(edges, 16):.1%} of rows of L = 16 hold"
    assert expected in capsys.readouterr().out
    assert read_config("crossed")["padding"] == 0 and logged("crossed")[-1]["tokens"] == 8 * 4 * 16
    # a corpus without boundaries says nothing of them
    call(train, *SIZE, "--out_dir=tiny")
    assert "cross documents" not in capsys.readouterr().out
    # another result: of another name and label, and refused in the folder of the first
    assert set(load_rows(["padded", "crossed"]).label) == {
        "rope documents=pad",
        "rope documents=cross",
    }
    with pytest.raises(UserError, match="documents: 'pad' in the folder, 'cross' asked for"):
        run("--documents=cross", "--out_dir=padded")


def test_a_run_of_documents_resumes_to_the_bit_and_a_fine_tune_keeps_them(paged: Path):
    from test_train import identical, saved, stop_at

    run("--out_dir=straight", "--gradient_accumulation_steps=2")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3)
        words = ["--out_dir=stopped", "--gradient_accumulation_steps=2"]
        assert [run(*words) for _ in range(2)] == [130, 0]
    assert identical(saved("straight"), saved("stopped"))
    assert logged("straight")[-1]["tokens"] == logged("stopped")[-1]["tokens"]
    tune = "--init_from=straight --max_iters=2 --batch_size=2 --compile=False --device=cpu".split()
    tune += ["--eval_lengths=16", "--examine=False", "--eval_iters=1"]
    assert call(train, *tune, "--out_dir=tuned") == 0
    assert read_config("tuned")["settings"]["documents"] == "pad"
    assert read_config("tuned")["padding"] == read_config("straight")["padding"]
    assert call(train, *tune, "--documents=cross", "--out_dir=crossed") == 0
    # its folder has a name of its own
    s = load_run("straight", "cpu").settings
    names = {RunFolder.open(replace(s, out_dir="", documents=d)).path for d in ("pad", "cross")}
    assert len(names) == 2 and checkpoint_paths(Path("tuned"))


def test_what_has_no_documents_is_refused_before_anything_is_made(paged: Path):
    write_bytes(paged / "letters", [b"a"] * 900, [TEXT])
    write_bytes(paged / "one_letter", [TEXT, b"text"], [b"a"] * 900)
    for name in ("tiny", "letters", "one_letter", "copy"):
        with pytest.raises(UserError, match=f"^{name} has no documents to keep apart .*leave"):
            run(f"--dataset={name}", "--out_dir=run")
    assert not Path("run").exists()
    with pytest.raises(UserError, match="documents = 'none': Input should be 'cross' or 'pad'"):
        run("--documents=none")
