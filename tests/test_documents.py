"""Rows that end with their document, --documents=pad, and rows in which attention stops there,
--documents=mask.
"""

import math
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
import test_schemes
import torch
from conftest import SIZE, TEXT, call, write_bytes
from test_train import identical, saved, stop_at

import ablate
import train
from attention import Options
from common.errors import UserError
from common.files import read_json, write_json
from configurable import GPTConfig
from data import batches
from data.corpus import Corpus, crossing, load_corpus
from measure.examine import examine
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


# ---- attention that stops at a document's end


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_masked_rows_are_those_that_cross_without_targets_that_begin_documents(lengths: tuple):
    toy = corpus(lengths)
    length = min(L, len(toy.train) - 2)
    firsts = toy.train_starts + 1  # the tokens are numbered from 1
    for read in (
        lambda mode: batches.batch(toy, length, 7, 3, 12, mode),
        lambda mode: batches.validation(toy, length, 12, mode),
    ):
        x, y = read("cross")
        inputs, targets = read("mask")
        assert (inputs == x).all() and (targets == np.where(np.isin(y, firsts), -1, y)).all()


def packed(gpt: GPT, vocabulary: int, length: int) -> tuple[torch.Tensor, torch.Tensor, list]:
    """Two rows of several documents, tokens and targets, and each document as (row, start, end)."""
    x = torch.randint(vocabulary, (2, length), generator=torch.Generator().manual_seed(5))
    y = x.roll(-1, 1)
    edges = [[0, length // 5, length // 5 + 1, length // 2, length], [0, 3 * length // 4, length]]
    for row, of_row in enumerate(edges):
        y[row, [edge - 1 for edge in of_row[1:]]] = -1
    return x, y, [(row, *pair) for row, of_row in enumerate(edges) for pair in pairwise(of_row)]


def alone(gpt: GPT, x: torch.Tensor, y: torch.Tensor, documents: list) -> torch.Tensor:
    """The losses of rows of documents, each of which is read by itself."""
    losses = [gpt.losses(x[r : r + 1, a:b], y[r : r + 1, a:b])[0] for r, a, b in documents]
    return torch.cat(losses).view_as(x)


EXACT = """rope  alibi  nope  learned  sinusoidal  t5  fire  fox  cope  stick_breaking  sink  kerple  dape
rope(base=500)+logn  chunks(size=3)+rope  rope+window(size=3,sinks=1)|nope  learned_rope  softpick
smear+rope+canon  alibi+short_conv  key_offset+nape  rove  rel_proj  wall  entmax15+rope
rope+cope+window(size=3,sinks=1)  alibi+logn+fox  fope  gate+rope  2*(rope+window(size=2))|alibi
""".split()


@pytest.mark.parametrize("pos", EXACT)
@torch.no_grad()
def test_every_document_of_a_row_has_the_losses_that_it_has_alone(pos: str):
    gpt = test_schemes.model(pos)
    x, y, documents = packed(gpt, test_schemes.VOCABULARY, min(36, gpt.pos.limit or 36))
    expected = alone(gpt, x, y, documents)
    crossed = gpt.losses(x, y)
    assert (crossed - expected)[y >= 0].abs().max() > 1e-3  # the boundary matters
    try:
        for options in (
            Options(),
            Options(block_queries=7, shared_bytes=0),
            Options("scored", block_queries=7),
        ):
            gpt.options = options
            test_schemes.assert_close(gpt.losses(x, y, documents=True), expected)
    finally:
        gpt.options = Options()


@pytest.mark.parametrize("pos", ["rope", "alibi + rope", "rope + window(size=6)", "t5"])
@torch.no_grad()
def test_flex_stops_at_documents_too(pos: str):
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(pos=pos, n_layer=2, n_head=2, n_embd=32, block_size=40)).eval()
    x, y, documents = packed(gpt, 256, 40)
    gpt.options = Options("flex")
    found = gpt.losses(x, y, documents=True)
    gpt.options = Options()
    torch.testing.assert_close(found, alone(gpt, x, y, documents), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"pos": "randomized(max=64) + rope"},
        {"pos": "learned_rope + logn", "n_kv_head": 1},
        {"pos": "rope", "kv_lora_rank": 8, "qk_rope_head_dim": 8},
        {"pos": "fire", "extend": "logn"},
    ],
    ids=str,
)
def test_gradients_are_those_of_the_documents_alone(options: dict):
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=40, **options)).double().train()
    gpt.pos.draw(0, 0, 40)
    x, y, documents = packed(gpt, 256, 40)
    gradients = []
    for losses in (gpt.losses(x, y, documents=True), alone(gpt, x, y, documents)):
        gpt.zero_grad()
        losses.sum().backward()
        gradients.append([p.grad.clone() for p in gpt.parameters() if p.grad is not None])
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("pos", "sentence"),
    [
        ("path", "path must not read other documents, nor count places .*: set --documents=pad"),
        ("selective_rope", "must not read other documents"),
        ("rope2d", "must not read other documents"),
        ("dape(kernel=3)", "must not read other documents"),
        ("abacus", "abacus embeds by earlier tokens: set --documents=pad"),
    ],
)
def test_a_scheme_that_reads_other_documents_is_refused_before_training(pos: str, sentence: str):
    config = GPTConfig(pos=pos, n_layer=1, n_head=2, n_embd=32, block_size=36)
    assert examine(config) == []
    with pytest.raises(UserError, match=sentence):
        examine(config, documents=True)


def test_a_scheme_that_counts_from_the_start_of_a_row_is_refused_however_late_it_counts():
    config = GPTConfig(pos="rel_proj(floor=0.5)", n_layer=1, n_head=2, n_embd=32, block_size=1024)
    with pytest.raises(UserError, match="nor count places from the start of a row"):
        examine(config, documents=True)


def test_where_distances_are_rewritten_documents_cannot_restart():
    gpt = GPT(GPTConfig(pos="rope", extend="self_extend", block_size=16, n_embd=16))
    x, y, _ = packed(gpt, 256, 64)
    with pytest.raises(
        UserError,
        match="where distances are rewritten, positions cannot restart: set --documents=pad",
    ):
        gpt.losses(x, y, documents=True)


# ---- padding


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


@pytest.mark.parametrize("documents", ["pad", "mask"])
def test_a_step_has_the_mean_loss_of_its_real_targets_however_it_is_split(
    documents: str, paged: Path
):
    mode = f"--documents={documents}"
    run(mode, "--batch_size=8", "--out_dir=none", "--max_iters=0")
    trained = load_run("none", "cpu")
    rows = batches.batch(trained.corpus, 16, 1337, 0, 8, documents)
    x, y = (torch.from_numpy(z) for z in rows)
    counts = (y >= 0).sum(1)
    assert len(set(counts.tolist())) > 1  # rows differ in how many targets they have
    mean = trained.model.losses(x, y, documents=documents == "mask")[y >= 0].mean()
    mean.backward()
    norm = torch.nn.utils.clip_grad_norm_(trained.model.parameters(), math.inf)
    for folder, words in (
        ("one", ["--batch_size=8"]),
        ("four", ["--batch_size=2", "--gradient_accumulation_steps=4"]),
    ):
        run(mode, *words, f"--out_dir={folder}")
        first = logged(folder)[0]
        assert first["loss"] == pytest.approx(mean.item(), rel=1e-6)
        assert first["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    for line, other in zip(logged("one"), logged("four"), strict=True):
        assert other["loss"] == pytest.approx(line["loss"], rel=1e-4)
    # validation is the mean over the real targets of such rows
    trained = load_run("one", "cpu")
    x, y = (torch.from_numpy(z) for z in batches.validation(trained.corpus, 16, 8, documents))
    mean = trained.model.losses(x, y, documents=documents == "mask")[y >= 0].mean()
    assert logged("one")[-1]["val_loss"] == pytest.approx(mean.item(), rel=1e-6)


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
    edges = batches.document_edges(load_corpus("paged"), "train")
    said = f"documents end in {crossing(edges, 16):.1%} of windows of L = 16: "
    printed = capsys.readouterr().out
    assert f"{said}rows end there too; {share:.1%} of inputs are padding" in printed
    assert logged("padded")[-1]["tokens"] == round(8 * 4 * 16 * (1 - share))
    run("--documents=cross", "--out_dir=crossed")
    assert f"{said}rows run on into the next one; --documents=pad" in capsys.readouterr().out
    run("--documents=mask", "--out_dir=masked", "--max_iters=1", "--warmup_iters=0")
    assert f"{said}attention stops and positions restart" in capsys.readouterr().out
    assert read_config("crossed")["padding"] == 0 and logged("crossed")[-1]["tokens"] == 8 * 4 * 16
    # a corpus without boundaries says nothing of them
    call(train, *SIZE, "--out_dir=tiny")
    assert "documents end in" not in capsys.readouterr().out
    # another result: of another name and label, and refused in the folder of the first
    assert set(load_rows(["padded", "crossed"]).label) == {
        "rope documents=pad",
        "rope documents=cross",
    }
    # a run that is older than the setting had its default
    path = Path("tiny/extrapolation.json")
    result = read_json(path)
    del result["settings"]["documents"]
    write_json(path, result | {"settings": result["settings"] | {"dataset": "paged"}})
    assert set(load_rows(["tiny", "crossed"]).label) == {"rope", "rope (crossed)"}
    with pytest.raises(UserError, match="documents: 'pad' in the folder, 'cross' asked for"):
        run("--documents=cross", "--out_dir=padded")


@pytest.mark.parametrize("documents", ["pad", "mask"])
def test_a_run_of_documents_resumes_to_the_bit_and_a_fine_tune_keeps_them(
    documents: str, paged: Path
):
    words = [f"--documents={documents}", "--gradient_accumulation_steps=2"]
    words += ["--pos=randomized(max=64) + rope", "--dropout=0.2"]
    run(*words, "--out_dir=straight")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 3)
        assert [run(*words, "--out_dir=stopped") for _ in range(2)] == [130, 0]
    assert identical(saved("straight"), saved("stopped"))
    assert logged("straight")[-1]["tokens"] == logged("stopped")[-1]["tokens"]
    tune = "--init_from=straight --max_iters=2 --batch_size=2 --compile=False --device=cpu".split()
    tune += ["--eval_lengths=16", "--examine=False", "--eval_iters=1"]
    assert call(train, *tune, "--out_dir=tuned") == 0
    assert read_config("tuned")["settings"]["documents"] == documents
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
        with pytest.raises(
            UserError, match=f"^{name} has no documents to keep apart .*set --documents=cross"
        ):
            run(f"--dataset={name}", "--out_dir=run")
    assert not Path("run").exists()
    # and so is a scheme that reads other documents
    words = [*SIZE, "--dataset=paged", "--documents=mask", "--examine=True"]
    for program, pos in ((train, "--pos=path"), (ablate, "path")):
        with pytest.raises(UserError, match="path must not read other documents"):
            call(program, pos, *words)
    assert not Path("out").exists()
    with pytest.raises(
        UserError, match="documents = 'none': Input should be 'cross', 'pad' or 'mask'"
    ):
        run("--documents=none")
