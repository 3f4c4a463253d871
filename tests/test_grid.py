"""Positions in two dimensions: schemes of images against transformers, and images of digits."""

import contextlib
import hashlib
import importlib
import io
import json
import math
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ablate
import data
import data.digits.prepare as digits
import evaluate
import extend
import report
import sample
import train
from configurable import UserError
from data import rows
from model import GPT, GPTConfig
from posenc import COLUMNS, Shape, Text
from positions.scheme import Scheme
from runs import answers
from runs.checkpoint import load_run
from runs.results import load_result

H, D, SIDE = 2, 16, 6  # heads, columns of a head, the side of training
SHAPE = Shape(n_head=H, head_dim=D, width=H * D, length=SIDE**2)
GRIDS = ["learned2d", "sinusoidal2d", "rope2d", "rope2d(coordinates=unit)", "alibi2d"]
FLOAT64 = torch.empty(0, dtype=torch.float64)


def theirs(name: str) -> ModuleType:
    """A model's module; the test is skipped where transformers is not installed."""
    pytest.importorskip("transformers")
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def added(text: str, side: int, table: Tensor | None = None) -> Tensor:
    """What a scheme adds to the embeddings of an image of that side, (side^2, C), float64."""
    scheme, index = Scheme(text, SHAPE, 1).double(), torch.arange(side**2)
    if table is not None:
        next(scheme.parameters()).data = table
    ids = scheme.ids(index, side**2)
    return scheme.embed(ids, Text(index[None], side**2)).detach().double()


def turned(text: str, side: int, x: Tensor) -> Tensor:
    """Queries or keys x (B, H, side^2, D) as a scheme turns them."""
    scheme, index = Scheme(text, SHAPE, 1), torch.arange(side**2)
    ids = scheme.ids(index, side**2)
    queries, keys = scheme.plans(index, ids, ids, side**2, FLOAT64)[0].turns
    assert torch.equal(queries(x), keys(x))
    return queries(x)


# ---- transformers


@pytest.mark.parametrize("side", [SIDE, 2, 9, 12, 24])
def test_a_table_is_resized_as_that_of_a_vit(side: int) -> None:
    vit, table = theirs("vit"), normal(SIDE, SIDE, H * D)
    config = vit.ViTConfig(hidden_size=H * D, image_size=4 * SIDE, patch_size=4)
    layer = vit.ViTEmbeddings(config).double()
    layer.position_embeddings.data = torch.cat((normal(1, 1, H * D), table.view(1, -1, H * D)), 1)
    patches = torch.zeros(1, 1 + side**2, H * D, dtype=torch.float64)
    expected = layer.interpolate_pos_encoding(patches, 4 * side, 4 * side)[0, 1:]
    torch.testing.assert_close(added("learned2d", side, table), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("side, base", [(SIDE, 10000.0), (13, 10000.0), (48, 100.0)])
def test_sinusoids_are_those_of_mae(side: int, base: float) -> None:
    make = theirs("vit_mae").build_2d_sinusoidal_position_embedding
    expected = 0.1 * make(side, side, H * D, base, dtype=torch.float64)
    ours = added(f"sinusoidal2d(base={base})", side)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("side, base", [(SIDE, 100.0), (12, 100.0), (24, 100.0), (7, 50.0)])
def test_unit_coordinates_turn_queries_and_keys_as_dinov3(side: int, base: float) -> None:
    dino = theirs("dinov3_vit")
    config = dino.DINOv3ViTConfig(
        hidden_size=H * D,
        num_attention_heads=H,
        image_size=4 * SIDE,
        patch_size=4,
        rope_parameters={"rope_theta": base},
    )
    config.rope_theta = base
    rope = dino.DINOv3ViTRopePositionEmbedding(config).eval()
    cos, sin = rope(torch.zeros(1, 3, 4 * side, 4 * side))
    q, k = (normal(2, H, side**2, D, seed=seed) for seed in (1, 2))
    expected = dino.apply_rotary_pos_emb(q, k, cos, sin)
    ours = [turned(f"rope2d(coordinates=unit, base={base})", side, x) for x in (q, k)]
    for a, b in zip(ours, expected, strict=True):  # theirs have float32 angles
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


# ---- the schemes


@pytest.mark.parametrize(
    "total, side", [(0, 1), (1, 1), (3, 1), (4, 2), (8, 2), (9, 3), (10, 3), (144, 12), (2304, 48)]
)
def test_an_id_holds_the_row_and_the_column(total: int, side: int) -> None:
    piece = Scheme("alibi2d", SHAPE, 1).ids_piece
    ids = piece.ids(torch.arange(total + side), total)
    found = [divmod(n, COLUMNS) for n in ids.tolist()]
    assert found == [divmod(n, side) for n in range(total + side)]
    assert (ids.diff() > 0).all() and piece.side(total) == side
    assert torch.equal(torch.stack(piece.places(ids)), torch.tensor(found).T.reshape(2, -1))


def test_a_penalty_is_the_distance_in_the_image() -> None:
    scheme, index = Scheme("alibi2d", SHAPE, 1), torch.arange(16)
    ids = scheme.ids(index, 16)
    (bias,) = scheme.plans(index, ids, ids, 16, FLOAT64)[0].biases
    found = bias(torch.arange(H)[:, None, None], ids[:, None], ids)
    assert found.dtype == torch.float64
    for h, slope in enumerate((1 / 16, 1 / 256)):
        for i in range(16):
            for j in range(i + 1):
                distance = math.hypot(i // 4 - j // 4, i % 4 - j % 4)
                assert float(found[h, i, j]) == pytest.approx(-slope * distance, rel=1e-15)


def test_a_product_depends_on_rows_and_columns_apart() -> None:
    """The same pair of patches elsewhere in the image has the same product; the transposed one has
    another one."""
    vectors = [normal(D, seed=seed).expand(1, 1, 81, D) for seed in (1, 2)]
    q, k = (turned("rope2d", 9, x)[0, 0].view(9, 9, D) for x in vectors)
    here = float(q[2, 5] @ k[1, 1])
    assert float(q[8, 6] @ k[7, 2]) == pytest.approx(here, abs=1e-5)
    for row, column in ((5, 2), (3, 5), (2, 6)):
        assert abs(float(q[row, column] @ k[1, 1]) - here) > 1e-3


def model(pos: str) -> GPT:
    """A small model in float64, all weights away from where they start."""
    torch.manual_seed(0)
    shape = dict(block_size=SIDE**2, vocab_size=9, n_layer=2, n_head=H, n_embd=H * D)
    gpt = GPT(GPTConfig(pos=pos, **shape)).double().eval()
    for parameter in gpt.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return gpt


@pytest.mark.parametrize("pos", GRIDS)
@torch.no_grad()
def test_an_image_of_any_side_is_decoded_as_it_is_read_at_once(pos: str) -> None:
    """Also where one token more is asked for, as `generate` does: the side is the same."""
    gpt = model(pos)
    idx = torch.randint(9, (2, 100), generator=torch.Generator().manual_seed(1))
    whole = gpt(idx, idx)[0]
    for total in (100, 101):
        cache = gpt.new_cache(2, total)
        parts = [gpt(part, cache=cache)[0] for part in idx.split([1, 37, 1, 61], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
    other = gpt(idx[:, :81], idx[:, :81])[0]  # the same tokens in an image of side 9
    assert float((other - whole[:, :81])[:, 10:].abs().max()) > 1e-3


@pytest.mark.parametrize("pos", GRIDS)
def test_the_columns_of_an_image_are_felt(pos: str) -> None:
    """A patch above counts otherwise than one as far back along the text but elsewhere in the
    image: what no scheme of texts can tell."""
    gpt, first, second = model(pos), torch.zeros(1, 36, dtype=torch.long), {}
    for place in (20, 24):
        changed = first.clone()
        changed[0, place] = 5
        second[place] = changed
    with torch.no_grad():
        base = gpt(first, first)[0]
        ends = {n: (gpt(idx, idx)[0] - base)[0, n + 5] for n, idx in second.items()}
    assert not torch.allclose(ends[20], ends[24], atol=1e-6)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("learned2d(resize=cubic)", "learned2d: resize is bicubic or bilinear, not cubic"),
        ("rope2d(coordinates=pixel)", "rope2d: coordinates is patch or unit, not pixel"),
        ("rope2d(base=0.5)", "rope2d: base must be at least 1, not 0.5"),
        ("sinusoidal2d(base=0)", "sinusoidal2d: base must be at least 1, not 0"),
        ("rope2d | nope", "rope2d acts once, before the first layer"),
        ("rope2d + rope", "both claim the rotation"),
        ("learned2d + alibi2d", "learned2d and alibi2d both claim the position ids"),
        ("rope2d + t5", "rope2d gives places in an image, and t5 reads positions along a text"),
    ],
)
def test_what_a_scheme_of_images_cannot_do_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        Scheme(text, SHAPE, 2)


def test_columns_that_four_does_not_divide_are_refused() -> None:
    shape = Shape(n_head=1, head_dim=6, width=6, length=16)
    for name, what in (("rope2d", "a head dimension"), ("sinusoidal2d", "an n_embd")):
        with pytest.raises(UserError, match=f"{name} needs {what} that 4 divides, not 6"):
            Scheme(name, shape, 1)
    with pytest.raises(UserError, match="rope2d needs a head dimension that 4 divides, not 0"):
        Scheme("rope2d", Shape(n_head=1, head_dim=0, width=8, length=16), 1)


# ---- drawings


def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return digits.draw(np.random.default_rng(seed), np.arange(count) % 10)


def test_the_same_drawing_is_rendered_at_any_side() -> None:
    pictures = drawn(100)
    fine = digits.render(*pictures, 96).reshape(100, 96, 96)
    for side, most in ((12, 0.04), (24, 0.01), (48, 0.004)):  # a centre is no mean
        part = 96 // side
        averaged = fine.reshape(100, side, part, side, part).mean((2, 4))
        coarse = digits.render(*pictures, side).reshape(100, side, side)
        assert 0 <= coarse.min() and coarse.max() <= 1
        assert np.abs(coarse - averaged).mean() < most
        assert np.abs(coarse.mean(0) - averaged.mean(0)).max() < 0.06
        for other in (averaged[..., ::-1], averaged.swapaxes(1, 2), np.roll(averaged, 1, 0)):
            assert np.abs(coarse - other).mean() > 0.1


def test_digits_are_told_apart_by_the_nearest_mean_and_differ_from_each_other() -> None:
    known, asked = (digits.render(*drawn(count, seed), 12) for count, seed in ((2000, 1), (400, 2)))
    means = np.stack([known[digit::10].mean(axis=0) for digit in range(10)])
    found = ((asked[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (found == np.arange(400) % 10).mean() > 0.85
    assert len(np.unique(known.round(3), axis=0)) == 2000


def test_a_row_is_a_start_and_patches_that_are_all_scored() -> None:
    tokens, scored = digits.make_rows(*drawn(600), 12)
    assert tokens.shape == scored.shape == (600, 145) and set(tokens[:, 1:].ravel()) == {*range(8)}
    assert (tokens[:, 0] == digits.START).all() and not scored[:, 0].any() and scored[:, 1:].all()
    assert len(set(digits.GREYS)) == 8 == digits.START
    blank = (tokens[:, 1:] == 0).mean()
    assert 0.5 < blank < 0.8  # a digit fills a part of its image


def test_the_drawings_of_seed_0_are_those_of_the_published_runs() -> None:
    generator = np.random.default_rng(0)
    tested = digits.draw(generator, np.arange(digits.TEST_IMAGES) % 10)
    trained = digits.draw(generator, np.arange(digits.TRAIN_IMAGES) % 10)
    tokens = [digits.make_rows(*tested, side)[0] for side in (12, 48)]
    tokens.append(digits.make_rows(trained[0][:500], trained[1][:500], 12)[0])
    found = [hashlib.sha256(part.astype("<u2").tobytes()).hexdigest()[:12] for part in tokens]
    assert found == ["15aef6252d2d", "8a113818dc81", "ec9cb64267f2"]


# ---- the corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> data.Corpus:
    """Few small images: of 16 patches, tested at 64 and 256 too."""
    folder = tmp_path_factory.mktemp("corpora") / "digits"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "TRAIN_IMAGES", 600)
        patch.setattr(digits, "TEST_IMAGES", 12)
        digits.prepare(folder, side=4)
    return data.load("digits", folder.parent)


def test_the_corpus_says_what_it_is(corpus: data.Corpus) -> None:
    about = corpus.meta["rows"]
    assert (about["protocol"], about["kind"], about["width"]) == ("image", "digits", 4)
    assert about["inputs"] == about["trained"] == 16 and corpus.unit == "token"
    assert about["sizes"] == [[16, 12, 17], [64, 12, 65], [256, 12, 257]]
    first = rows.rows_of(corpus, 64)[0][0]
    text = corpus.tokenizer.decode(first.tolist())
    assert text[0] == "\n" and {*text[1:]} <= {*digits.GREYS} and len(text) == 65


def test_the_validation_rows_of_all_sizes_are_the_same_drawings(corpus: data.Corpus) -> None:
    def images(side: int) -> np.ndarray:
        return rows.rows_of(corpus, side**2)[0][:, 1:].reshape(-1, side, side).astype(float)

    fine = images(16)
    for side in (4, 8):
        part = 16 // side
        averaged = fine.reshape(-1, side, part, side, part).mean((2, 4))
        apart = np.abs(images(side)[:, None] - averaged).mean((2, 3))  # (drawings, drawings)
        assert np.diag(apart).mean() < 0.75 * apart.mean()
    assert apart.argmin(1).tolist() == list(range(len(fine)))
    seen = corpus.train.reshape(-1, 17).tolist()
    assert not any(row in seen for row in rows.rows_of(corpus, 16)[0].tolist())


def test_every_patch_is_a_target(corpus: data.Corpus) -> None:
    inputs, targets = rows.batch(corpus, 16, 0, 0, 32)
    assert (targets >= 0).all() and (targets < digits.START).all()
    assert (inputs[:, 0] == digits.START).all() and (inputs[:, 1:] == targets[:, :-1]).all()
    assert len(rows.validation(corpus, 16, 99)[0]) == 12  # of the trained side only


def test_the_corpus_makes_itself_and_is_the_same_each_time(
    corpus: data.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "TRAIN_IMAGES", 40)
    made = data.load("digits", tmp_path)
    assert made.meta["rows"]["width"] == 12 and made.meta["source"] == "drawn from seed 0"
    monkeypatch.setattr(digits, "TRAIN_IMAGES", 600)
    monkeypatch.setattr(digits, "TEST_IMAGES", 12)
    again, other = digits.prepare(tmp_path / "a", 4), digits.prepare(tmp_path / "b", 4, seed=1)
    assert again["splits"] == corpus.meta["splits"] != other["splits"]


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--name=books"], "--name=books must begin with 'digits', as in digits_16"),
        (["--seed=-1"], "--seed=-1 must be at least 0"),
        (["--side=3"], "--side=3: it must lie between 4 and 32"),
        (["--side=33"], "--side=33: it must lie between 4 and 32"),
    ],
)
def test_a_command_that_cannot_make_images_is_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "HERE", tmp_path)
    monkeypatch.setattr("sys.argv", ["prepare.py", *words])
    with pytest.raises(UserError, match=sentence):
        digits.main()
    assert not list(tmp_path.iterdir())


def test_images_are_replaced_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HERE", tmp_path), ("TRAIN_IMAGES", 20), ("TEST_IMAGES", 4)):
        monkeypatch.setattr(digits, name, value)
    monkeypatch.setattr("sys.argv", ["prepare.py", "--name=digits_8", "--side=8"])
    digits.main()
    with pytest.raises(UserError, match="digits_8 is taken: .*replace it with --overwrite"):
        digits.main()
    monkeypatch.setattr("sys.argv", ["prepare.py", "--name=digits_8", "--seed=2", "--overwrite"])
    digits.main()
    assert data.load("digits_8", tmp_path).meta["rows"]["width"] == 12


# ---- a run

SMALL = ["--dataset=digits", "--block_size=16", "--n_layer=1", "--n_head=2", "--n_embd=16"]
SMALL += ["--max_iters=4", "--batch_size=4", "--eval_iters=2", "--compile=False"]
SMALL += ["--examine=False", "--dtype=float32"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: data.Corpus) -> Any:
    """A folder with a run of rope2d and one of rope on images, and what was printed."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(data, "load", lambda name: corpus)
        patch.chdir(place)
        for pos in ("rope2d", "rope"):
            patch.setattr("sys.argv", ["train.py", f"--pos={pos}", *SMALL])
            assert train.main() == 0
        yield place, out.getvalue()


@pytest.fixture
def beside(trained: Any, corpus: data.Corpus, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the runs, from the folder in which they were made."""
    monkeypatch.setattr(data, "load", lambda name: corpus)
    monkeypatch.chdir(trained[0])
    return [str(next(Path("out").glob(f"{pos}-*"))) for pos in ("rope2d", "rope")]


def test_a_run_on_images_is_tested_at_every_size_by_its_loss(
    trained: Any, beside: list[str], corpus: data.Corpus
) -> None:
    result, gpt = load_result(beside[0]), load_run(Path(beside[0])).model
    assert [row["length"] for row in result["rows"]] == [16, 64, 256]
    for row in result["rows"]:
        assert row["protocol"] == "image" and row["trained"] == 16 and row["windows"] == 12
        assert not {"accuracy", "exact", "by_distance", "by_depth", "chance", "majority"} & {*row}
        assert row["tokens"] == 12 * row["length"] and len(row["block_nats"]) == 12
        idx = torch.from_numpy(rows.rows_of(corpus, row["length"])[0].astype(np.int64))
        with torch.no_grad():
            nats = gpt.losses(idx[:, :-1], idx[:, 1:]).double()
        assert row["nats"] == pytest.approx(float(nats.mean()), rel=1e-5)
        assert row["block_nats"] == pytest.approx(nats.mean(1).tolist(), rel=1e-5)
        assert f"image at {row['length']}: {row['nats']:.4f} nats per token\n" in trained[1]
    assert result["notes"] == [] and "right" not in trained[1]
    lines = Path(beside[0], "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert "val_loss" in json.loads(lines[-1])


def test_a_run_on_images_has_a_table_and_the_figure_of_losses(
    trained: Any, beside: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert re.search(r"digits, trained at L = 16; nats per token\n\n +N +image\n", trained[1])
    assert "fixed_targets" not in trained[1] and Path(beside[0], "extrapolation.png").is_file()
    monkeypatch.setattr("sys.argv", ["report.py", *beside, "--out=both.svg"])
    report.main()
    said = capsys.readouterr().out
    assert (
        "digits, image, nats per token: mean and spread over seeds" in said
        and "fixed_targets" not in said
    )
    lines = [line.split() for line in said.splitlines() if line.startswith("rope ")]
    assert [line[1] for line in lines[-3:]] == ["16", "64", "256"]
    assert all("(one seed)" in " ".join(line) for line in lines[-3:])
    drawn = Path("both.svg").read_text(encoding="utf-8")  # texts stand there as comments
    assert "trained at L = 16: the same drawings in more and more patches (image)" in drawn
    assert "test length, tokens (one seed)" in drawn and "cropped" not in drawn


def test_what_a_packed_cache_costs_is_told_of_images_too(
    beside: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    shutil.copytree(beside[0], tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["evaluate.py", str(tmp_path / "run"), "--extend=int8"])
    evaluate.main()
    said = capsys.readouterr().out
    for n in (16, 64, 256):
        assert re.search(rf"int8 at {n}: [+-]0\.\d+ ± 0\.\d+ nats against none, [\d,]+ -> ", said)


def test_gains_over_l_are_refused_where_each_length_has_other_targets(
    beside: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["extend.py", beside[0], "int8"])
    with pytest.raises(UserError, match="digits has other targets at each length, and a gain"):
        extend.main()


def test_the_figure_says_what_it_shows(beside: list[str]) -> None:
    from runs.figures import loss_axes

    title = {}
    for protocol in ("image", "fixed_targets"):
        axes = loss_axes("digits", [load_result(beside[0])], protocol, "")
        labels = axes.get_legend_handles_labels()[1]
        title[protocol] = axes.get_title(), labels[-1]
    assert title["image"][0].endswith("the same drawings in more and more patches (image)")
    assert title["fixed_targets"][0].endswith("with more and more context (fixed_targets)")
    assert [name for _, name in title.values()] == ["loss at N = L", "cropped: loss at N = L"]


def test_a_finished_run_on_images_is_not_trained_again(
    beside: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--pos=rope", *SMALL])
    assert train.main() == 0
    said = capsys.readouterr().out
    assert "step" not in said and "nats per token" in said


def test_a_loss_that_is_not_finite_is_a_finding_of_images_too(corpus: data.Corpus) -> None:
    class Lost(torch.nn.Module):
        def answers(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            count = int((targets >= 0).sum())
            return torch.full((count,), math.nan), torch.zeros(count)

    from runs.device import CPU
    from runs.processes import ALONE

    found = answers.measure(Lost(), corpus, 64, CPU, ALONE)
    assert found["nats"] is None and found["diverged"] and "768 losses" in found["reason"]


def test_schemes_are_compared_on_images_with_a_learning_rate_of_their_own(
    beside: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def in_this_process(cell: ablate.Cell, relay: object) -> str:
        monkeypatch.setattr("sys.argv", ["train.py", *ablate.words_for_train(cell.settings)])
        assert train.main() == 0
        return ""

    monkeypatch.setattr(ablate, "train", in_this_process)
    monkeypatch.setattr(train, "on_signals", lambda handler: None)  # cells may run in threads
    words = ["--learning_rates=0.001,0.003", "--ablate_dir=compared", "--batch_size=2"]
    monkeypatch.setattr("sys.argv", ["ablate.py", "rope2d", "alibi2d", *SMALL, *words])
    assert ablate.main() == 0
    table = Path("compared/table.txt").read_text(encoding="utf-8")
    assert (
        "digits, image, nats per token: mean and spread over seeds" in table and "picked" in table
    )
    assert Path("compared/figure.png").stat().st_size > 10_000
    assert all(f"{pos} " in table for pos in ("rope2d", "alibi2d"))


def test_a_run_on_images_is_diagnosed_and_sampled(
    beside: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.argv", ["evaluate.py", beside[0], "--diagnose"])
    evaluate.main()
    assert "so only attention is measured" in capsys.readouterr().out
    words = ["--start=\n", "--max_new_tokens=64", "--device=cpu"]
    monkeypatch.setattr("sys.argv", ["sample.py", beside[0], *words])
    sample.main()
    said = capsys.readouterr().out
    assert len(said) == 66 and {*said[1:-1]} <= {*digits.GREYS, "\n"}


def test_only_a_model_of_images_is_asked_for_images(corpus: data.Corpus) -> None:
    rows.check_asked(corpus, corpus)
    text = type("Text", (), {"name": "stdlib", "meta": {}})()
    with pytest.raises(UserError, match="trained on stdlib has not learned to answer digits"):
        rows.check_asked(text, corpus)
