"""The diagnosis of a trained run: statistics by hand, planted models, continuations of known texts, and the command."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import Project
from test_evaluate import corpus
from torch import Tensor

import attention
import data.recall.prepare as recall
import evaluate
from configurable import EvaluateSettings, UserError, configure
from data import load
from evaluate import find_places, findings
from model import GPT, GPTConfig
from runs import continuation, diagnose

L, VOCABULARY = 16, 3
SCHEMES = [
    "nope",
    "learned(rows=64)",
    "sinusoidal",
    "rope",
    "rope(p=0.5)",
    "alibi",
    "t5",
    "rope + logn + window(size=7, sinks=2)",
    "randomized(max=64) + rope",
    "rope | nope | alibi",
    "cope",
    "dape + alibi",
    "fox",
    "selective_rope",
    "path",
    "pope",
    "xpos",
    "fope",
    "learned_rope",
    "ssmax",
    "block_causal(size=8) + alibi",
]
EXTENSIONS = ["yarn", "pi + logn", "rerope(window=8)", "self_extend(window=8, group=2)", "clip"]
EXTENSIONS += ["lm_infinite(size=8)", "streaming(size=8)", "dynamic_ntk", "window(size=9)"]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def gpt(pos: str, extend: str = "", n_layer: int = 1, deviation: float = 0.4) -> GPT:
    """A GPT in float64 with large random weights, so that attention is far from even."""
    torch.manual_seed(5)
    shape = dict(vocab_size=VOCABULARY, n_layer=n_layer, n_head=2, n_embd=32)
    model = GPT(GPTConfig(block_size=L, pos=pos, **shape)).double().eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not name.startswith("pos."):
            parameter.normal_(std=deviation)
    model.extend(extend)
    return model


def tokens(batch: int, length: int) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(VOCABULARY, (batch, length), generator=random)


def by_hand(scores: np.ndarray, far: int) -> list[float]:
    """The five statistics of one query from its scores, in plain floats; -inf is unseen."""
    own = len(scores) - 1
    weights = [math.exp(s - max(scores)) for s in scores]
    weights = [w / sum(weights) for w in weights]
    return [
        -sum(w * math.log(w) for w in weights if w > 0),
        sum(w * (own - j) for j, w in enumerate(weights)),
        sum(w for j, w in enumerate(weights) if own - j >= far),
        sum(weights[:4]),
        max(scores),
    ]


# ---- attention


@pytest.mark.parametrize("pos", ["nope", "alibi", "rope", "nope + window(size=5)", "nope + logn"])
def test_statistics_are_those_worked_out_by_hand(pos, monkeypatch):
    monkeypatch.setattr(diagnose, "BLOCK_ROWS", 7)
    model, text = gpt(pos), tokens(1, 40)
    x = model.h[0].ln_1(model.wte(text))[0]
    q, k, _ = (t.view(40, 2, 16).numpy() for t in model.h[0].attn.c_attn(x).chunk(3, -1))
    wanted = np.zeros((5, 2, 40))
    for h in range(2):
        for i in range(40):
            row = []
            for j in range(i + 1):
                a, b = q[i, h], k[j, h]
                if pos == "rope":
                    turn = np.exp(1j * (j - i) * 10000.0 ** (-np.arange(8) / 8))
                    score = ((a[:8] + 1j * a[8:]).conj() * (b[:8] + 1j * b[8:]) * turn).sum().real
                else:
                    score = a @ b
                score = score / 4 * (math.log(i + 1) / math.log(L) if "logn" in pos else 1)
                score -= (i - j) * (1 / 16, 1 / 256)[h] if pos == "alibi" else 0
                row.append(-math.inf if "window" in pos and i - j >= 5 else score)
            wanted[:, h, i] = by_hand(row, L)
    found = diagnose.attention_of(model, text, L)
    assert found.lines == [1, 2, 4, 8, 16, 32, 40]
    for name, column, values in zip(
        diagnose.STATISTICS, found.columns.values(), wanted, strict=True
    ):
        bins = [
            values[:, a:b].mean(-1) for a, b in zip([0, *found.lines], found.lines, strict=False)
        ]
        np.testing.assert_allclose(column[0, :, :, 0], np.array(bins).T, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("pos", "extend"),
    [(pos, "") for pos in SCHEMES] + [("rope", extend) for extend in EXTENSIONS],
)
def test_the_weights_that_are_measured_are_those_that_make_the_output(pos, extend, monkeypatch):
    """Of every kind of scheme, in blocks of rows, and past L; the statistics are those of whole matrices."""
    monkeypatch.setattr(diagnose, "BLOCK_ROWS", 11)
    model, text, seen = gpt(pos, extend, n_layer=3), tokens(1, 40), []
    hooks = [b.attn.register_forward_hook(lambda *given: seen.append(given)) for b in model.h]
    model(text)
    for hook in hooks:
        hook.remove()
    columns = diagnose.attention_of(model, text, L).columns
    for layer, (module, (x, prepared, _), output) in enumerate(seen):
        q, k, v, *features = module.project(x, prepared.plan)
        scores = attention.scores(q, k, prepared.plan, slice(None), *features)
        mixed = (scores.softmax(-1) @ v.to(scores.dtype)).transpose(1, 2).flatten(2)
        torch.testing.assert_close(module.c_proj(mixed.to(x.dtype)), output, atol=1e-5, rtol=1e-5)
        rows = [[by_hand(row[: i + 1], L) for i, row in enumerate(of)] for of in scores[0].tolist()]
        last = np.array(rows)[:, 32:].mean(axis=1)  # (H, 5)
        for name, value in zip(diagnose.STATISTICS, last.T, strict=True):
            np.testing.assert_allclose(columns[name][layer, :, -1, 0], value, rtol=1e-5, atol=1e-7)


def test_even_attention_has_the_entropy_and_the_shares_of_counting():
    model = gpt("nope")
    model.h[0].attn.c_attn.weight[:64] = 0  # queries and keys
    columns = diagnose.attention_of(model, tokens(3, 64), L).columns
    keys = np.arange(33, 65)  # of the queries in the last line
    wanted = np.log(keys), (keys - 1) / 2, (keys - L) / keys, 4 / keys, 0 * keys
    for name, values in zip(diagnose.STATISTICS, wanted, strict=True):
        np.testing.assert_allclose(columns[name][0, :, -1], values.mean(), atol=1e-6, err_msg=name)


def test_no_legend_covers_a_curve_and_every_axis_is_named(monkeypatch):
    kept = []
    monkeypatch.setattr(diagnose, "save_figure", lambda figure, path: kept.append(figure))
    model, texts = gpt("rope").float(), tokens(3, 5 * L)
    score = scores_of(dict.fromkeys(range(1, 257), 2.0))
    shuffled = lambda n, kept=math.inf: score(n)  # noqa: E731
    found = [diagnose.attention_of(model, texts, L), *diagnose.continuations(model, texts, L)]
    found += [diagnose.far_shuffled(shuffled, [L, 64]), diagnose.effective_context(score, [L, 64])]
    found.append(diagnose.without_bands(model, score, [L, 64]))
    diagnose.draw(found, L, "figure.png")
    (figure,) = kept
    figure.draw_without_rendering()
    panels = figure.axes
    assert [panel.get_ylabel() for panel in panels] == [
        *("entropy, nats", "distance, tokens", "beyond L, weight", "first 4, weight"),
        *("largest, score", "share", "share", "nats more", "excess, nats", "nats more"),
    ]
    assert panels[5].get_ylim() == panels[6].get_ylim()
    for panel in panels:
        legend = panel.get_legend()
        assert (legend is None) == (len(panel.containers) == 1)
        assert legend is None or legend.get_window_extent().y1 < panel.get_window_extent().y0


# ---- losses of planted models


def diagnosed(model: GPT, lengths=(L, 2 * L, 4 * L, 8 * L)) -> dict[str, diagnose.Finding]:
    """The findings on a random text, by the first two words of their titles."""
    tester = evaluate.Tester(model, corpus([9000]))
    found = findings(tester, find_places(tester.corpus), list(lengths))
    return {" ".join(one.title.split()[:2]).rstrip(":"): one for one in found}


@pytest.mark.parametrize("layers", [1, 2])
def test_a_window_is_exposed(layers):
    """Nothing is read behind it: no share, no cost of shuffling, and an effective context that is no longer."""
    size = 9
    reach = layers * (size - 1) + 1
    found = diagnosed(gpt(f"rope + window(size={size})", n_layer=layers, deviation=0.2))
    shuffled = found["far text"]
    assert shuffled.lines == [2, 4, 8, 16, 32, 64]
    for column in shuffled.columns.values():
        costs = np.abs(column[0, 0]).max(axis=-1)
        assert (costs[[kept >= reach for kept in shuffled.lines]] < 1e-5).all()
    assert (np.abs(shuffled.columns["N = 128"][0, 0, :2]) > 1e-3).any()  # near text is read
    assert (found["attention at"].columns["beyond L"] == 0).all()
    (context,) = [one for name, one in found.items() if name.startswith("effective")]
    excess = context.columns["excess"][0, 0]
    assert np.ptp(excess[[n >= 2 * reach for n in context.lines]], axis=0).max() < 1e-5


def test_what_is_shuffled_is_far_text_only_and_all_of_it(monkeypatch):
    calls = []

    def losses(idx, targets, window=None):
        calls.append((idx.clone(), targets))
        return torch.zeros(idx.shape)

    tester = evaluate.Tester(SimpleNamespace(losses=losses), corpus([9000]))
    places = find_places(tester.corpus)
    plan = evaluate.fixed_targets(places, 128)
    for kept in (math.inf, 50):
        replace(tester, kept=kept).score(plan)
    (whole, targets), (changed, same) = calls
    assert (changed[:, 78:] == whole[:, 78:]).all() and (same[:, 78:] == targets[:, 78:]).all()
    assert (changed[:, :78].sort().values == whole[:, :78].sort().values).all()
    assert (changed[:, :78] != whole[:, :78]).any(dim=1).all()
    assert len({tuple(row) for row in (changed != whole).tolist()}) == 64  # each in its own order


def scores_of(losses: dict[int, float]):
    """`score` of a model with these losses by length."""
    return lambda n, kept=math.inf: losses[n] + np.linspace(-0.5, 0.5, 64)


def test_the_effective_context_is_the_first_window_near_the_lowest_loss():
    flat = {2: 3.0, 4: 2.5, 8: 2.105, 16: 2.1, 32: 2.1, 64: 2.1}
    found = diagnose.effective_context(scores_of(flat), [16, 32, 64])
    assert found.title == "effective context 8, surely 8 (loss 2.1000 at 16)"
    worse = flat | {32: 2.6, 64: math.nan, 8: 2.12}
    found = diagnose.effective_context(scores_of(worse), [16, 32, 64])
    assert found.title.startswith("effective context 16, surely 16")
    noise = np.linspace(-0.1, 0.1, 64)  # its standard error is 0.0073
    noisy = lambda n, kept=math.inf: flat[n] + (noise if n == 8 else 0 * noise)  # noqa: E731
    uncertain = diagnose.effective_context(noisy, [16, 32, 64])
    assert uncertain.title.startswith("effective context 8, surely 16")
    assert "diverged" in diagnose.table(found) and "nan" not in diagnose.table(found)
    content = diagnose.content(found)["excess"]
    assert content["mean"][-1] is None and content["mean"][-2] == pytest.approx(0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_a_model_without_a_finite_loss_has_no_effective_context(lost):
    model = gpt("rope")
    model.losses = lambda idx, targets, window=None: torch.full(idx.shape, lost)
    context = diagnosed(model)["no effective"]
    assert context.title == "no effective context: it diverged, no window has a finite loss"
    assert "diverged" in diagnose.table(context) and "nan" not in diagnose.table(context)


def test_a_cell_keeps_its_digits_and_never_shows_infinity():
    assert diagnose.cell(1.23456, 0.0) == "1.234560 ± 0.000000"
    assert diagnose.cell(1.23456, 0.012) == "1.235 ± 0.012"
    assert diagnose.cell(math.inf, math.nan) == diagnose.cell(math.nan, math.nan) == "diverged"


# ---- rotary bands


@pytest.mark.parametrize("extend", ["", "yarn", "ntk", "pi", "clip", "resonance", "p_rope", "abf"])
@pytest.mark.parametrize("pos", ["rope", "rope | rope(base=500)", "pope", "xpos", "learned_rope"])
def test_every_pair_is_in_one_band_and_without_all_bands_nothing_turns(pos, extend, monkeypatch):
    model, asked = gpt(pos, extend, n_layer=2), []
    own, text = model.pos.maps, tokens(1, 64)

    def score(n: int) -> np.ndarray:
        asked.append((n, model.pos.maps[len(own) :]))
        return np.zeros(64)

    found = diagnose.without_bands(model, score, [L, 64])
    assert model.pos.maps == own and list(found.columns) == ["N = 16", "N = 64"]
    assert [n for n, _ in asked] == [L] * (1 + len(found.lines)) + [64] * (1 + len(found.lines))
    assert [still.low for n, (still,) in ((n, m) for n, m in asked if m) if n == 64] == found.lines
    for piece in model.pos.rotary:
        table = diagnose.apply_maps(piece.frequencies(64), own, piece.base, 64)
        stopped = [
            diagnose.apply_maps(table, [diagnose.Still(low)], 0, 0)[0] for low in found.lines
        ]
        assert (sum((one == 0).int() for one in stopped)[table[0] > 0] == 1).all()
        for low, one in zip(found.lines, stopped, strict=True):
            waves = 2 * math.pi / table[0][(one == 0) & (table[0] > 0)]
            assert ((low <= waves) & (waves < 2 * low)).all()
    model.pos.maps = (*own, *map(diagnose.Still, found.lines))
    still = model.losses(text, text)
    other = gpt(pos, extend, n_layer=2)
    for piece in other.pos.rotary:
        monkeypatch.setattr(
            piece, "frequencies", lambda n, f=piece.frequencies: (0 * f(n)[0], f(n)[1])
        )
    torch.testing.assert_close(other.losses(text, text), still, atol=1e-6, rtol=1e-6)
    assert (gpt(pos, extend, n_layer=2).losses(text, text) - still).abs().max() > 1e-3


@pytest.mark.parametrize("extend", ["dynamic_ntk", "yarn"])
def test_the_bands_are_those_of_each_length(extend):
    """All of them: without them nothing turns; and nothing is told of a band that is not there."""
    lengths, model = [L, 16 * L], gpt("rope", extend)
    own, (piece,), asked = model.pos.maps, model.pos.rotary, []
    tables = {n: diagnose.apply_maps(piece.frequencies(n), own, piece.base, n)[0] for n in lengths}

    def score(n: int) -> np.ndarray:
        turned = diagnose.apply_maps((tables[n], 1.0), model.pos.maps[len(own) :], piece.base, n)[0]
        asked.append((n, int((turned == 0).sum() - (tables[n] == 0).sum())))
        return np.full(4, float(asked[-1][1]))

    found = diagnose.without_bands(model, score, lengths)
    for n in lengths:
        stopped = found.columns[f"N = {n}"][0, 0, :, 0]
        assert stopped.sum() == (tables[n] > 0).sum()
        bands = set(diagnose.octaves_of(tables[n][tables[n] > 0]).long().tolist())
        assert bands == {low for low, cost in zip(found.lines, stopped, strict=True) if cost}


def test_the_bands_of_a_huge_base_are_told_apart():
    found = diagnose.without_bands(gpt("rope(base=1e12)"), lambda n: np.zeros(64), [L])
    waves = [2 * math.pi * 1e12 ** (k / 8) for k in range(8)]
    assert found.lines == [2 ** int(math.log2(wave)) for wave in waves]


def test_a_band_that_no_score_needs_costs_nothing_and_one_that_all_need_costs_much():
    model = gpt("rope", deviation=0.2)
    weight = model.h[0].attn.c_attn.weight.view(3, 2, 16, 32)
    weight[:2, :, [7, 15]] = 0  # the slowest pair of queries and keys
    found = diagnosed(model)["without a"]
    costs = np.abs(found.columns["N = 128"][0, 0]).max(axis=-1)
    assert costs[-1] == 0 and (costs[:3] > 1e-4).all()


# ---- long generation


def measures(prompt: list[int], text: list[int], size: int) -> dict[str, list[float]]:
    found = continuation.window_measures(prompt, text, size)
    return dict(zip(continuation.MEASURES, found.tolist(), strict=True))


def test_continuations_of_known_texts_have_known_measures():
    same = measures([7] * 20, [1] * 40, 20)
    assert same["repeated"] == [16 / 17, 1.0] and same["copied"] == [0.0, 0.0]
    assert same["1-grams"] == [1 / 20] * 2 and same["4-grams"] == [1 / 17] * 2
    fresh = measures(list(range(20)), list(range(100, 140)), 20)
    assert fresh["repeated"] == [0.0, 0.0] and fresh["3-grams"] == [1.0, 1.0]
    copied = measures(list(range(20)), list(range(20)) * 2, 20)
    assert copied["copied"] == [1.0, 1.0] and copied["repeated"] == [0.0, 1.0]
    half = measures(list(range(20)), [*range(12), *range(50, 58)], 20)
    assert half["copied"] == [5 / 13]  # the 8-grams that begin at 0 ... 4, of 13
    assert measures([1] * 8, [1] * 20, 8)["copied"] == [1.0, 1.0]  # the rest is no whole window


def test_the_model_writes_and_the_real_text_is_what_follows():
    model, texts = gpt("alibi").float(), tokens(3, 5 * L)
    written, real = diagnose.continuations(model, texts, L)
    assert written.lines == real.lines == [L, 2 * L, 3 * L, 4 * L]
    rows = texts.tolist()
    wanted = [measures(row[:L], row[L:], L)["2-grams"] for row in rows]
    assert real.columns["2-grams"][0, 0].T.tolist() == wanted
    (again, _) = diagnose.continuations(model, texts, L)
    assert all((again.columns[name] == column).all() for name, column in written.columns.items())
    model.generate = lambda idx, count, generator: torch.cat((idx, texts[:, L:]), 1)
    (copied, real) = diagnose.continuations(model, texts, L)  # a model that writes what follows
    assert all((copied.columns[name] == column).all() for name, column in real.columns.items())
    model.generate = lambda idx, count, generator: torch.cat((idx, idx.new_zeros(3, count)), 1)
    (stuck, _) = diagnose.continuations(model, texts, L)
    assert (stuck.columns["repeated"][0, 0, 1:] == 1).all()


# ---- all of it


def test_a_scheme_without_rotary_pieces_has_no_bands_and_one_length_no_continuation():
    assert "without a" not in diagnosed(gpt("alibi"))
    assert [*diagnosed(gpt("alibi"), (L,))] == ["attention at", "far text", "effective context"]


def test_of_rows_with_answers_only_attention_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recall, "TRAIN_ROWS", 512)
    recall.prepare(tmp_path / "recall", length=64)
    rows = load("recall", tmp_path)
    torch.manual_seed(0)
    shape = dict(vocab_size=rows.vocab_size, n_layer=1, n_head=2, n_embd=16)
    model = GPT(GPTConfig(block_size=64, pos="alibi", **shape)).eval()
    (found,) = findings(evaluate.Tester(model, rows), find_places(rows), [64, 128, 256])
    assert found.lines[-1] == 256 and "only attention is measured" in capsys.readouterr().out
    monkeypatch.setattr(diagnose, "report", lambda *about: None)
    settings = EvaluateSettings(eval_lengths=(256, 100_000))
    about = {"train_length": 64, "step": 1, "checkpoint": ""}
    evaluate.diagnose_run(evaluate.Tester(model, rows), "run", about, settings)
    longest = max(width - 1 for _, _, width in rows.meta["rows"]["sizes"])
    said = f"at [64, 256] tokens: L and longer ones, of which scheme and corpus allow {longest}"
    assert said in capsys.readouterr().out


def test_a_name_alone_turns_a_switch_on_and_nothing_else():
    settings, words = configure(EvaluateSettings, ["out/A", "--diagnose"], "")
    assert settings.diagnose and words == ["out/A"] and "diagnose" in settings.named
    assert not configure(EvaluateSettings, ["--diagnose=False"], "")[0].diagnose
    for word in ("--stride", "--extend", "--protocols"):
        with pytest.raises(UserError, match="needs a value"):
            configure(EvaluateSettings, [word], "")


def test_the_command_writes_the_same_twice(project: Project, tmp_path: Path):
    size = "--n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --max_iters=2 --compile=False"
    train = f"train.py --dataset=tiny --device=cpu --dtype=float32 --eval_lengths=16 {size}"
    started = project.run(tmp_path, *train.split(), "--out_dir=run")
    assert started.process.returncode == 0, started.complained
    command = "evaluate.py run --diagnose --device=cpu --dtype=float32".split()
    command += ["--eval_lengths=16,32,64,128"]
    kept = (tmp_path / "run/extrapolation.json").read_bytes()
    first = project.run(tmp_path, *command)
    assert first.process.returncode == 0, first.complained
    about = json.loads((tmp_path / "run/diagnose.json").read_text())
    assert about["step"] == 2 and about["dataset"] == "tiny" and about["train_length"] == 16
    assert about["checkpoint"] and about["split_sha256"] and about["versions"]["torch"]
    assert {"keys", "kept", "window", "wavelength", "from"} <= {
        key for one in about["findings"] for key in one
    }
    assert (tmp_path / "run/diagnose.png").stat().st_size > 50_000
    again = project.run(tmp_path, *command)
    assert again.said == first.said and "effective context" in first.said
    assert json.loads((tmp_path / "run/diagnose.json").read_text()) == about
    assert (tmp_path / "run/extrapolation.json").read_bytes() == kept
    short = project.run(tmp_path, *command, "--eval_lengths=64", "--format=tex")
    assert short.said.count("\\begin{tabular}") == short.said.count("\\bottomrule") >= 5
    lengths = {
        one["keys"][-1]
        for one in json.loads((tmp_path / "run/diagnose.json").read_text())["findings"]
        if "keys" in one
    }
    assert short.process.returncode == 0 and lengths == {16, 64}


@pytest.mark.parametrize("pos", SCHEMES)
def test_attention_maps_are_the_weights_that_the_definition_gives(pos: str) -> None:
    model, idx = gpt(pos), tokens(2, 21)
    maps, given = diagnose.attention_maps(model, idx), {}
    assert maps.shape == (1, 2, 2, 21, 21) and not maps.triu(1).any()
    assert torch.allclose(maps.sum(-1), torch.ones(1, dtype=maps.dtype))
    layer = model.h[0].attn
    layer.c_proj.register_forward_pre_hook(lambda _, x: given.update(y=x[0]))
    layer.register_forward_pre_hook(lambda _, x: given.update(x=x[0], plan=x[1].plan))
    model(idx)
    values = layer.project(given["x"], given["plan"])[2]
    written = (maps[0] @ values).transpose(1, 2).flatten(2)
    assert torch.allclose(written, given["y"])  # the model's own way of attention


@pytest.mark.parametrize("extend", EXTENSIONS)
def test_attention_maps_are_under_the_extension(extend: str) -> None:
    model, idx = gpt("rope", n_layer=2), tokens(1, 3 * L)
    plain = diagnose.attention_maps(model, idx)
    model.extend(extend)
    extended = diagnose.attention_maps(model, idx)
    assert extended.shape == (2, 1, 2, 3 * L, 3 * L) and not torch.allclose(plain, extended)


def test_attention_maps_leave_no_hook_after_an_error() -> None:
    model = gpt("rope")
    with pytest.raises(IndexError):
        diagnose.attention_maps(model, torch.full((1, 4), VOCABULARY))
    assert not any(block.attn._forward_pre_hooks for block in model.h)
