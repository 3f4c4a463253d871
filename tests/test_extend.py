"""extend.py, and `extend` in the other programs: what is tested, kept, resumed, searched and refused."""

import csv
import json
import math
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import data
import evaluate
import extend
import posenc
import report
import sample
import train
from configurable import ExtendSettings, TrainSettings, UserError, configure, read_json
from extend import Trial
from positions import extended_frequencies
from positions.scheme import Scheme
from runs.checkpoint import Run, load_run, load_state
from runs.device import CPU
from runs.figures import plot_extensions
from runs.files import sha256, write_json
from runs.folder import read_config
from runs.log import Log
from runs.results import gains, load_result
from runs.start import start_run

TEXT = "".join(
    f"{n} times {n % 7} is {n * (n % 7)}, as everybody knows.\n" for n in range(120)
).encode()
SIZE = [
    "--dataset=tiny",
    "--n_layer=1",
    "--n_head=2",
    "--n_embd=16",
    "--block_size=16",
    "--batch_size=4",
    "--max_iters=6",
    "--warmup_iters=2",
    "--eval_interval=6",
    "--log_interval=1",
    "--eval_iters=1",
    "--eval_lengths=8,16,32",
    "--compile=False",
    "--device=cpu",
]
BYTES = ["--device=cpu", "--dtype=float32"]
VARYING = {"tokens_per_s", "memory", "mfu"}
LENGTHS = [8, 16, 32]
LOAD, SAVE_FIGURE = data.load, Figure.savefig


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small corpora of bytes: `tiny`, of five documents, `other`, and `roomy`, which
    has targets besides those of the test.
    """
    root = tmp_path_factory.mktemp("corpora")
    ids = np.frombuffer(TEXT, dtype=np.uint8)
    texts = {"tiny": np.array_split(ids, 5), "other": [ids[::-1].copy()], "roomy": [*[ids] * 10]}
    for name, documents in texts.items():
        data.write_corpus(
            root / name,
            {"train": [ids], "val": documents},
            tokenizer="bytes",
            source="here",
            rule="all",
        )
    return root


@contextmanager
def workplace(corpora: Path, folder: Path) -> Iterator[None]:
    """Work in `folder`, with these corpora, without drawing, and leave signals as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", lambda name: LOAD(name, corpora))
        patch.setattr(Figure, "savefig", lambda figure, file, **how: file.write(b"drawn"))
        patch.chdir(folder)
        yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def models(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trained and tested runs: rope with seeds 1 and 2, rope at 32, alibi."""
    folder = tmp_path_factory.mktemp("models")
    with workplace(corpora, folder):
        for name, *words in (
            ("one", "--seed=1"),
            ("two", "--seed=2"),
            ("alibi", "--pos=alibi", "--seed=1"),
            ("long", "--seed=1", "--block_size=32", "--batch_size=2", "--eval_lengths=16,32,64"),
        ):
            program(train, *SIZE, *words, f"--out_dir={name}")
    return folder


@pytest.fixture(autouse=True)
def here(corpora: Path, models: Path, tmp_path: Path) -> Iterator[Path]:
    """Each test beside copies of the runs."""
    place = shutil.copytree(models, tmp_path / "models")
    with workplace(corpora, place):
        yield place


def program(module: Any, *words: str) -> Any:
    """module.main() on a command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{module.__name__}.py", *words])
        return module.main()


def rows(folder: str, dataset: str = "tiny") -> dict[tuple[str | None, int], dict[str, Any]]:
    """The rows of fixed_targets on a corpus by extension and length."""
    return {
        (r["extend"], r["length"]): r
        for r in load_result(folder)["rows"]
        if (r["protocol"], r["dataset"]) == ("fixed_targets", dataset)
    }


@contextmanager
def counted() -> Iterator[list[str]]:
    """The extensions that are measured meanwhile."""
    measured, extrapolation = [], evaluate.extrapolation

    def note(tester: Any, *args: Any) -> dict[str, Any]:
        measured.append(tester.model.pos.extension or "none")
        return extrapolation(tester, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "extrapolation", note)
        yield measured


def files(folder: str) -> dict[str, bytes]:
    """What stands in a run folder, without locks."""
    return {
        p.name: p.read_bytes() for p in Path(folder).iterdir() if p.name not in (".lock", ".holder")
    }


# ---- the table of one model


def test_every_fitting_extension_gets_a_row_at_each_length_beside_the_old_rows() -> None:
    before, scheme = load_result("one")["rows"], load_run("one").model.pos
    fitting = extend.fitting_extensions(scheme)
    program(extend, "one")
    after, found = load_result("one")["rows"], rows("one")
    assert all(row in after for row in before)
    assert {
        "pi",
        "ntk",
        "yarn",
        "dynamic_ntk",
        "llama3",
        "logn",
        "rerope",
        "ntk + logn",
        "window(size=16)",
    } <= set(fitting)
    assert {(None if e == "none" else e, n) for e in fitting for n in LENGTHS} == set(found)
    assert len({r["targets"] for r in found.values()}) == 1
    assert (
        found["pi", 32]["factor"] == 2
        and found["pi", 16]["factor"] == 1
        and found[None, 32]["factor"] is None
    )
    assert (
        found["pi", 32]["nats"] != found[None, 32]["nats"]
        and found["pi", 16]["nats"] == found[None, 16]["nats"]
    )
    assert load_result("one")["extend"] is None


def test_a_second_time_nothing_is_measured() -> None:
    program(extend, "one", "pi", "ntk")
    before = files("one")
    with counted() as measured:
        program(extend, "one", "pi", " ntk", "none")
    assert measured == [] and files("one")["extrapolation.json"] == before["extrapolation.json"]


def test_rows_of_a_text_that_has_changed_since_are_measured_again() -> None:
    program(extend, "one", "pi", "ntk")
    result = load_result("one")
    for row in result["rows"]:
        row["split_sha256"] = "of another text" if row["extend"] == "pi" else row["split_sha256"]
    write_json(Path("one/extrapolation.json"), result)
    with counted() as measured:
        program(extend, "one", "pi", "ntk")
    assert measured == ["pi"]


def test_what_was_killed_half_way_goes_on_with_what_is_missing() -> None:
    extrapolation = evaluate.extrapolation

    def killed(tester: Any, *args: Any) -> dict[str, Any]:
        if tester.model.pos.extension == "yarn":
            raise KeyboardInterrupt
        return extrapolation(tester, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "extrapolation", killed)
        with pytest.raises(KeyboardInterrupt):
            program(extend, "one", "pi", "yarn", "ntk")
    with counted() as measured:
        program(extend, "one", "pi", "yarn", "ntk")
    assert measured == ["yarn", "ntk"]


def table(folder: str = "one") -> str:
    """The table of extensions of a run."""
    return Path(f"{folder}/extend.txt").read_text(encoding="utf-8")


def test_side_looks_replace_nothing_and_the_sweep_gives_its_table_again() -> None:
    program(extend, "one", "pi", "ntk")
    before, shown = load_result("one"), table()
    looks = ["--eval_lengths=64,8,100", "--eval_lengths=100", "--eval_windows=128"]
    for look in looks:
        program(extend, "one", "ntk", look)
    program(extend, "one", "ntk", "--dataset=other")
    for look in (*looks, "--dtype=float32", "--dataset=other", "--extend=ntk", "--stride=4"):
        program(evaluate, "one", look)
    after = load_result("one")
    same = [
        r for r in after["rows"] if any(without_time(r) == without_time(b) for b in before["rows"])
    ]
    assert len(same) == len(before["rows"]) < len(after["rows"])
    with counted() as measured:
        program(extend, "one", "pi", "ntk")
    assert measured == [] and table() == shown


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its speed."""
    return {name: value for name, value in row.items() if name != "tokens_per_s"}


def test_a_finished_run_is_finished_after_side_looks(capsys: pytest.CaptureFixture) -> None:
    words = [*SIZE, "--seed=1", "--out_dir=one"]
    capsys.readouterr()
    program(train, *words)
    shown = lines_of_table(capsys)
    for look in ("--eval_lengths=100", "--eval_windows=128", "--dataset=other", "--extend=ntk"):
        program(evaluate, "one", look)
    capsys.readouterr()
    with counted() as measured:
        program(train, *words)
    assert measured == []
    assert len(shown) == 3 and shown.items() <= lines_of_table(capsys).items()


def lines_of_table(capsys: pytest.CaptureFixture) -> dict[str, list[str]]:
    """The cells of each line of the table that was printed, by length."""
    cells = map(str.split, capsys.readouterr().out.partition("\ntiny")[2].splitlines())
    return {line[0]: line[1:] for line in cells if line and line[0].isdigit()}


def test_other_expressions_add_lines_to_the_table() -> None:
    program(extend, "one", "pi")
    program(extend, "one", "ntk", "--eval_lengths=8,16,32")
    labels = {line.split("  ")[0] for line in table().splitlines()}
    assert {"none", "pi", "ntk"} <= labels


def test_other_lengths_are_on_the_same_targets_and_another_table() -> None:
    program(extend, "one", "pi")
    with counted() as measured:
        program(extend, "one", "pi", "--eval_lengths=16,64")
        assert measured == ["none", "pi"]
        program(extend, "one", "pi", "--eval_lengths=16,64")
        program(extend, "one", "pi", "--eval_lengths=16,32,64")
    assert measured == ["none", "pi"]
    assert len({r["targets"] for r in rows("one").values()}) == 1
    assert re.search(r"extension +16 +32 +64\n", table())


BURST = """import torch
from torch import Tensor

from posenc import Bias, Piece


class Burst(Piece):
    '''A bias that is infinite in float32 from distance 89 on.'''

    def bias(self, like: Tensor) -> Bias:
        return lambda h, i, j: torch.exp((i - j).to(like.dtype)) * 1e-30
"""


def test_a_bias_that_overflows_is_trained_tested_tabled_and_drawn(
    capsys: pytest.CaptureFixture,
) -> None:
    Path("burst.py").write_text(BURST, encoding="utf-8")
    own = "--pos_file=burst.py"
    words = [own, "--pos=burst", "--seed=1", "--out_dir=burst", "--eval_lengths=16,64,512"]
    program(train, *SIZE, *BYTES, *words)
    assert re.search(r"\n +512 +diverged", capsys.readouterr().out)
    found = {n: row for (_, n), row in rows("burst").items()}
    assert found[64]["nats"] is not None and found[512]["diverged"]
    assert Path("burst/extrapolation.png").exists()
    program(evaluate, "burst", own, "--eval_lengths=256", *BYTES)
    program(extend, "burst", "logn", own, "--eval_lengths=16,64,512", *BYTES)
    assert re.search(r"\nnone .* diverged", table("burst"))
    capsys.readouterr()
    program(report, "burst", "one")
    assert "diverged" in capsys.readouterr().out


def test_an_extension_with_parameters_of_its_own_leaves_the_other_rows() -> None:
    program(extend, "one", "smooth(learned=True)", "pi")
    program(evaluate, "one", "--extend=smooth(learned=True, knee=9)", *BYTES)
    assert {e for e, _ in rows("one")} == {
        None,
        "smooth(learned=True)",
        "pi",
        "smooth(learned=True, knee=9)",
    }
    assert load_result("one")["parameters"] == load_run("one").model.parameter_count


def test_a_misfit_is_a_sentence_that_names_what_fits_and_nothing_is_written() -> None:
    before = files("alibi")
    with pytest.raises(UserError, match="yarn does not extend alibi: .* What fits: .*slopes"):
        program(extend, "alibi", "slopes", "yarn")
    assert files("alibi") == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no run folder is named"),
        (("one/config.json",), "no run folder is named"),
        (("one", "out/nowhere"), "is no folder"),
        (("one", "empty"), "config.json is missing"),
        (("one", "--compare=empty"), "config.json is missing"),
        (("one", "alibi"), "alibi is no other seed of one .*--compare"),
        (("one", "long"), "long is no other seed"),
        (("one", "copy"), "the same seed"),
        (("one", "--search=1"), "search.* 1,? .*at least 2"),
        (("one", "pi", "ntk", "--search=2"), "--search tests no extension: leave 'pi ntk' out"),
        (("one", "yarn(4)"), "options have names"),
        (("one", "pi + ntk"), "pi and ntk both"),
        (("one", "yarnn"), "did you mean yarn"),
        (("one", "pi + " * 99 + "pi"), "is named twice"),
    ],
)
def test_a_mistake_is_a_sentence_before_anything_is_measured(
    words: tuple[str, ...], said: str
) -> None:
    Path("empty").mkdir()
    shutil.copytree("one", "copy")
    with counted() as measured, pytest.raises(UserError, match=said):
        program(extend, *words)
    assert measured == [] and not Path("one/extend.txt").exists()


def test_why_nothing_can_be_measured_is_said(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(UserError, match="nothing on tiny was measured"):
        program(extend, "one", "ntk", "--eval_windows=65536")
    said = capsys.readouterr().out.partition("one: rope, extended by ntk")[2]
    assert "fixed_targets at 8: the 4615 validation tokens of tiny are too few" in said


def test_an_expression_may_hold_commas_and_is_known_however_it_is_typed() -> None:
    program(extend, "one", "yarn(factor=4,beta=8)")
    with counted() as measured:
        program(extend, "one", "yarn( factor=4, beta=8 )")
    assert measured == [] and rows("one")["yarn(factor=4, beta=8)", 8]["factor"] == 4


# ---- the numbers of table and figure


def test_gains_are_the_cropped_loss_less_the_loss_paired_by_seed() -> None:
    program(extend, "one", "two", "pi", "--compare=long,alibi")
    results, others = (
        [load_result(f) for f in ("one", "two")],
        [load_result(f) for f in ("long", "alibi")],
    )
    for result in others:
        result["rows"] = [row for row in result["rows"] if row["length"] in LENGTHS]
    dataset, found = gains(results, others)
    own = {f: rows(f) for f in ("one", "two", "long", "alibi")}
    assert dataset == "tiny" and list(found["pi"]) == LENGTHS
    for n in LENGTHS:
        assert found["pi"][n] == pytest.approx(
            [own[f][None, 16]["nats"] - own[f]["pi", n]["nats"] for f in ("one", "two")]
        )
        assert found["rope trained at 32"][n] == pytest.approx(
            [own["one"][None, 16]["nats"] - own["long"][None, n]["nats"]]
        )
        assert found["alibi trained at 16"][n] == pytest.approx(
            [own["one"][None, 16]["nats"] - own["alibi"][None, n]["nats"]]
        )
    text = Path("one/extend.txt").read_text(encoding="utf-8")
    mean, sd = np.mean(found["pi"][32]), np.std(found["pi"][32], ddof=1)
    assert f"{mean:+.3f} ± {sd:.3f}" in text and "seeds 1, 2" in text
    cropped = np.mean([own[f][None, 16]["nats"] for f in ("one", "two")])
    assert f"cropped: {cropped:.4f}" in text
    assert re.search(r"rope trained at 32 .*\(n = 1\)", text)  # of two seeds
    at_end = [np.mean(of[32]) for of in found.values()]
    assert at_end == sorted(at_end, reverse=True)


def test_a_run_may_stand_beside_itself_and_one_of_another_seed_is_named_as_left_out() -> None:
    program(extend, "one", "pi", "--compare=one,two")
    _, found = gains([load_result("one")], [load_result("one"), load_result("two")])
    assert found["rope trained at 16"] == found["none"] and set(found) == {
        "none",
        "pi",
        "rope trained at 16",
    }
    program(extend, "one", "pi", "--compare=two")
    assert "rope trained at 16: of another seed" in Path("one/extend.txt").read_text(
        encoding="utf-8"
    )


def test_a_run_beside_is_measured_on_the_same_targets_and_text() -> None:
    program(extend, "one", "pi", "--compare=long", "--dataset=other")
    text = Path("one/extend.txt").read_text(encoding="utf-8")
    assert text.startswith("other, rope trained at 16, seeds") and re.search(
        r"rope trained at 32 +[-+]\d\.\d{3} +[-+]\d", text
    )
    program(extend, "one", "pi")  # its own text again, though `other` was measured last
    assert Path("one/extend.txt").read_text(encoding="utf-8").startswith("tiny, ")


def test_many_extensions_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    program(extend, "one", "pi", "ntk", "--out=drawn.v1", "--format=csv")
    lines = list(csv.DictReader(Path("drawn.v1.csv").read_text(encoding="utf-8").splitlines()))
    expected = gains([load_result("one")], [])[1]
    found = {(line["extension"], int(line["N"])): float(line["mean"]) for line in lines}
    assert found == {(x, n): np.mean(v) for x, of in expected.items() for n, v in of.items()}
    assert Path("drawn.v1.txt").exists() and Path("drawn.v1.png").exists()
    monkeypatch.setattr(Figure, "savefig", SAVE_FIGURE)
    plot_extensions([load_result("one")], [], "real.png", "")
    assert Path("real.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_extensions_draws_the_means_of_the_table_blue_where_context_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program(extend, "one", "two", "pi")
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    results = [load_result(f) | {"original_length": 8} for f in ("one", "two")]
    plot_extensions(results, [], "drawn.png", "")
    (axes,), (image,) = drawn[0].axes, drawn[0].axes[0].images
    means = [[np.mean(of[n]) for n in LENGTHS] for of in gains(results, [])[1].values()]
    assert (
        np.array(image.get_array()) == pytest.approx(np.array(means))
        and "trained at 8, then 16, mean over 2 seeds" in drawn[0].get_suptitle()
    )
    assert [t.get_text() for t in axes.texts] == [f"{x:+.3f}" for row in means for x in row]
    (red, _, blue), (less_red, _, less_blue) = (
        image.cmap(image.norm(nats))[:3] for nats in (1, -1)
    )
    assert blue > red and less_red > less_blue


# ---- evaluate.py and sample.py


def test_evaluate_tests_as_trained_under_another_extension_and_under_none() -> None:
    fine_tune("tuned", "--extend=yarn(factor=2)")
    assert {e for e, _ in rows("tuned")} == {"yarn(factor=2)"}
    with counted() as measured:
        program(evaluate, "tuned", *BYTES)
        program(evaluate, "tuned", "--extend=ntk(factor=2)", *BYTES)
        program(evaluate, "tuned", "--extend=none", *BYTES)
    assert measured == ["yarn(factor=2)", "ntk(factor=2)", "none"]
    result = load_result("tuned")
    assert {e for e, _ in rows("tuned")} == {"yarn(factor=2)", "ntk(factor=2)", None} and result[
        "extend"
    ] == "yarn(factor=2)"
    assert rows("tuned")["ntk(factor=2)", 64]["factor"] == 2
    model = load_run("tuned").model
    model.extend("ntk(factor=2)")
    about = {"train_length": 32, "step": 0, "checkpoint": ""}
    asked = ExtendSettings(eval_lengths=(16, 32, 64))
    again = evaluate.evaluate(evaluate.Tester(model, data.load("tiny")), about, asked)
    assert [r["nats"] for r in again["rows"]] == [
        rows("tuned")["ntk(factor=2)", n]["nats"] for n in (16, 32, 64)
    ]


def test_the_table_shows_the_rows_of_the_extension_that_was_tested(
    capsys: pytest.CaptureFixture,
) -> None:
    program(evaluate, "one", "--extend=ntk", *BYTES)
    shown = capsys.readouterr().out
    assert re.search(rf"\nrope, ntk\n(.*\n)* +32 +{rows('one')['ntk', 32]['nats']:.4f}", shown)
    program(report, "one")
    shown = capsys.readouterr().out
    assert re.search(rf"\nrope\n(.*\n)* +32 +{rows('one')[None, 32]['nats']:.4f}", shown)


def test_what_is_known_by_position_of_another_extension_is_added() -> None:
    before = load_result("one")["per_position"]
    program(extend, "one", "pi")
    after = load_result("one")["per_position"]
    assert all(curve in after for curve in before)
    assert [curve["extend"] for curve in after if curve not in before][-1] == "pi"


def test_a_sample_under_an_extension_is_the_same_with_and_without_a_cache(
    capsys: pytest.CaptureFixture,
) -> None:
    words = ["one", "--temperature=0", "--max_new_tokens=40", "--start=7 times 1", *BYTES]
    program(sample, *words, "--extend=yarn(factor=3) + logn")
    said, note = capsys.readouterr()
    model = load_run("one").model
    model.extend("yarn(factor=3) + logn")
    tokens = torch.tensor([list(b"7 times 1")])
    for _ in range(40):
        tokens = torch.cat((tokens, model(tokens)[0][:, -1:].argmax(-1)), 1)
    assert said.encode() == bytes(tokens[0].tolist()) + b"\n" or "\ufffd" in said
    assert "extended by yarn(factor=3) + logn" in note
    program(sample, *words)
    assert "extended" not in capsys.readouterr().err


# ---- fine-tuning


def fine_tune(folder: str, *words: str, start: str = "one") -> None:
    """train.py from a run at twice its length, trained and tested."""
    program(
        train,
        *SIZE,
        f"--init_from={start}",
        "--block_size=32",
        "--batch_size=2",
        "--eval_lengths=16,32,64",
        f"--out_dir={folder}",
        *words,
    )


def weights(folder: str) -> dict[str, torch.Tensor]:
    """The trained numbers of a run."""
    return load_state(Path(folder))["model"]


def metrics(folder: str) -> list[dict[str, Any]]:
    """metrics.jsonl without what the clock says."""
    lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in VARYING} for line in lines]


def stop_after(step: int, *words: str, start: str = "one") -> None:
    """train.py that is told to stop in that step."""
    take_step = train.Training.take_step

    def noted(self: train.Training) -> Any:
        done = take_step(self)
        if self.step == step:
            signal.raise_signal(signal.SIGTERM)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Training, "take_step", noted)
        with pytest.raises(SystemExit):
            fine_tune(*words, start=start)


def same_run(a: str, b: str) -> None:
    """Weights, metrics and losses are equal to the bit."""
    ours, theirs = weights(a), weights(b)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert metrics(a) == metrics(b)
    histories = [
        [load_state(Path(f))[k] for k in ("original_length", "train_lengths")] for f in (a, b)
    ]
    assert histories[0] == histories[1]
    assert [(k, r["nats"]) for k, r in rows(a).items()] == [
        (k, r["nats"]) for k, r in rows(b).items()
    ]


def test_a_fine_tune_keeps_the_first_length_and_notes_the_second() -> None:
    fine_tune("tuned", "--extend=yarn")
    config, result = read_config(Path("tuned")), load_result("tuned")
    assert (config["original_length"], config["train_lengths"], result["train_length"]) == (
        16,
        [16, 32],
        32,
    )
    assert (
        config["settings"]["extend"] == result["extend"] == "yarn"
        and result["original_length"] == 16
    )
    assert rows("tuned")["yarn", 64]["factor"] == 4  # of the first length
    fine_tune("again", "--extend=none", start="tuned")
    assert load_run("again").model.pos.extension == "" and set(rows("again")) == {
        (None, n) for n in (16, 32, 64)
    }
    fine_tune("heir", start="tuned")
    assert read_config(Path("heir"))["settings"]["extend"] == "yarn" and {
        e for e, _ in rows("heir")
    } == {"yarn"}
    assert read_config(Path("heir"))["train_lengths"] == [16, 32, 32]


@pytest.mark.parametrize(
    "words",
    [
        ("--extend=yarn", "--mixed_lengths=16,32", "--dropout=0.2"),
        ("--extend=ntk", "--mixed_lengths=16,32,64", "--staged=True"),
        ("--extend=yarn(factor=4) + pose(target=64)",),
        ("--extend=smooth(learned=True)", "--gradient_accumulation_steps=2"),
        ("--extend=yarn", "--drop_pos=0.5", "--mixed_lengths=16,32"),
    ],
)
def test_a_fine_tune_that_was_stopped_ends_as_if_it_had_not(words: tuple[str, ...]) -> None:
    fine_tune("straight", *words)
    stop_after(4, "halting", *words)
    assert metrics("halting")[-1]["step"] == 4
    shutil.rmtree("one")  # the folder holds everything
    fine_tune("halting", *words)
    same_run("straight", "halting")


def test_a_fine_tune_that_dropped_an_inherited_extension_goes_on() -> None:
    fine_tune("tuned", "--extend=yarn")
    fine_tune("straight", "--drop_pos=0.5", start="tuned")
    stop_after(4, "halting", "--drop_pos=0.5", start="tuned")
    fine_tune("halting", "--drop_pos=0.5", start="tuned")
    same_run("straight", "halting")


def test_each_step_has_as_many_tokens_whatever_its_length() -> None:
    seen: list[tuple[int, ...]] = []
    batch = train.Training.batch

    def noted(self: train.Training, first: int, count: int, length: int) -> Any:
        seen.append((self.step, first, count, length))
        return batch(self, first, count, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Training, "batch", noted)
        fine_tune(
            "mixed", "--extend=yarn", "--mixed_lengths=64,16,32", "--gradient_accumulation_steps=2"
        )
        in_turn = [length for _, _, _, length in seen[::2]]
        assert in_turn == [64, 16, 32] * 2 and len(seen) == 12
        assert all(count * length == 64 for _, _, count, length in seen)
        for step, first, count, length in seen:
            assert first in (
                step * 128 // length,
                step * 128 // length + count,
            )  # no sequence twice
        seen.clear()
        fine_tune("staged", "--extend=yarn", "--mixed_lengths=16,32,64", "--staged=True")
    assert [length for _, _, _, length in seen] == [16, 16, 32, 32, 64, 64]
    assert read_config(Path("staged"))["train_lengths"] == [16, 16, 32, 64]
    assert metrics("mixed")[-1]["tokens"] == 6 * 128


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mixed_lengths=16,24",), "24.* not divide"),
        (
            ("--extend=pose(target=24)", "--mixed_lengths=16,32", "--staged=True"),
            "32 tokens do not fit into target = 24",
        ),
        (("--mixed_lengths=16,8192", "--batch_size=256"), "8,193"),
        (("--staged=True",), "needs mixed_lengths"),
        (("--extend=yarn + pose(target=64)",), "give a fixed factor"),
        (("--extend=slopes",), "slopes does not extend rope"),
        (("--extend=longrope(file='absent.json')",), "absent.json"),
        (("--pos=alibi", "--extend=slopes"), "does not go with"),
    ],
)
def test_a_fine_tune_that_cannot_be_is_a_sentence_and_makes_no_folder(
    words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        fine_tune("tuned", *words)
    assert not Path("tuned").exists()


def test_another_extension_is_another_default_folder_and_another_run() -> None:
    made = []
    for text in ("yarn(factor=2)", "yarn( factor=2 )", "ntk"):
        settings, _ = configure(TrainSettings, [*SIZE, "--init_from=one", f"--extend={text}"], "")
        made.append(start_run(settings, CPU).folder)
    assert made[0] == made[1] != made[2]
    fine_tune("tuned", "--extend=yarn")
    with pytest.raises(UserError, match="holds another run .*extend: 'ntk' here, 'yarn' there"):
        fine_tune("tuned", "--extend=ntk")


@pytest.mark.parametrize(
    ("option", "place"),
    [
        ("longrope(file='far/factors.json', factor=2)", ""),
        ("temperature(file='far/factors.json')", "tuned"),
    ],
)
def test_a_file_of_an_extension_is_copied_and_the_original_may_go(option: str, place: str) -> None:
    Path("far").mkdir()
    Path("far/factors.json").write_text(
        json.dumps({"long_factor": [1, 1.5, 2, 2.5], "scales": [1.1, 0.9]}), encoding="utf-8"
    )
    fine_tune("straight", f"--extend={option}")
    stop_after(4, place, f"--extend={option}")
    shutil.rmtree("far")
    fine_tune(place, f"--extend={option}")
    folder = place or str(next(Path("out").iterdir()))
    same_run("straight", folder)
    copy = Path(folder) / "factors.json"
    assert read_config(Path(folder))["extension_files_sha256"] == {"factors.json": sha256(copy)}
    program(evaluate, folder, *BYTES)
    program(sample, folder, "--max_new_tokens=2", *BYTES)
    copy.write_text(json.dumps({"long_factor": [1, 1, 1, 1], "scales": [1, 1]}), encoding="utf-8")
    with pytest.raises(UserError, match="factors.json is missing or not the file"):
        load_run(folder)


def test_a_copy_that_was_changed_is_refused_and_overwriting_takes_the_file_as_it_is_now() -> None:
    words = (*SIZE, "--extend=temperature(file='far.json')", "--out_dir=new")
    Path("far.json").write_text('{"scales": [2, 2]}', encoding="utf-8")
    program(train, *words)
    for path in ("far.json", "new/far.json"):
        Path(path).write_text('{"scales": [3, 3]}', encoding="utf-8")
    with pytest.raises(UserError, match="far.json is missing or not the file"):
        program(train, *words)
    Path("new/far.json").write_text('{"scales": [2, 2]}', encoding="utf-8")
    program(train, *words, "--overwrite=True")
    assert Path("new/far.json").read_bytes() == Path("far.json").read_bytes()


def test_a_typed_file_is_used_as_typed_and_that_of_the_training_is_the_runs_own_copy() -> None:
    trained, typed = "temperature(file='far.json')", "temperature(file='near.json')"
    for name, scale in (("far.json", 2), ("near.json", 3)):
        Path(name).write_text(json.dumps({"scales": [scale] * 2}), encoding="utf-8")
    fine_tune("tuned", f"--extend={trained}")
    shutil.move("far.json", "tuned/near.json")  # another file under the typed name
    program(extend, "tuned", trained, typed)
    assert rows("tuned")[typed, 32]["files_sha256"] == {"near.json": sha256(Path("near.json"))}


def test_fine_tunes_of_two_seeds_each_from_its_own_are_seeds_of_one_model() -> None:
    for seed, start in ((1, "one"), (2, "two")):
        fine_tune(f"tuned{seed}", f"--seed={seed}", start=start)
    program(extend, "tuned1", "tuned2", "pi")
    assert "seeds 1, 2" in Path("tuned1/extend.txt").read_text(encoding="utf-8")


def test_the_table_of_a_fine_tuned_run_compares_with_it_as_it_was_trained() -> None:
    fine_tune("tuned", "--extend=yarn(factor=2)")
    program(extend, "tuned", "ntk(factor=2)", "--compare=long")
    found = rows("tuned")
    assert {e for e, _ in found} == {"yarn(factor=2)", "ntk(factor=2)", None} and load_result(
        "tuned"
    )["extend"] == "yarn(factor=2)"
    _, of = gains([load_result("tuned")], [])
    for text, row in (
        ("ntk(factor=2)", "ntk(factor=2)"),
        ("none", None),
        ("yarn(factor=2)", "yarn(factor=2)"),
    ):
        assert of[text][64] == pytest.approx(
            [found["yarn(factor=2)", 32]["nats"] - found[row, 64]["nats"]]
        )
    text = Path("tuned/extend.txt").read_text(encoding="utf-8")
    assert text.startswith("tiny, rope + yarn(factor=2) trained at 16, then 32")
    program(extend, "one", "--compare=tuned,long", "pi")
    text = Path("one/extend.txt").read_text(encoding="utf-8")
    assert "rope + yarn(factor=2) trained at 16, then 32" in text and "rope trained at 32" in text


def test_what_an_extension_learned_is_in_force_wherever_its_text_is_typed_again() -> None:
    words = "--extend=smooth(kind=sqrt, learned=True)"
    fine_tune("tuned", words, "--learning_rate=0.3", "--max_iters=12")
    key = next(k for k in weights("tuned") if k.endswith("log_factor"))
    assert weights("tuned")[key].abs() > 0.01
    program(evaluate, "tuned", *BYTES)
    before = {place: row["nats"] for place, row in rows("tuned").items()}
    program(evaluate, "tuned", words, *BYTES)
    assert {place: row["nats"] for place, row in rows("tuned").items()} == pytest.approx(
        before, abs=1e-6
    )
    program(
        extend, "tuned", "none", "yarn", words.removeprefix("--extend="), "--eval_lengths=32,48"
    )
    program(evaluate, "tuned", words, *BYTES)
    assert {
        place: row["nats"] for place, row in rows("tuned").items() if place in before
    } == pytest.approx(before, abs=1e-6)
    fine_tune("heir", words, "--learning_rate=1e-9", start="tuned")
    assert weights("heir")[key] == pytest.approx(weights("tuned")[key].item(), abs=1e-5)


def test_a_checkpoint_that_was_trained_on_since_is_measured_anew() -> None:
    program(extend, "one", "yarn")
    program(train, *SIZE, "--seed=1", "--out_dir=fresh", "--max_iters=3")
    shutil.copyfile("one/extrapolation.json", "fresh/extrapolation.json")
    with counted() as measured:
        program(extend, "fresh", "yarn")
    assert measured == ["none", "yarn"]
    assert load_result("fresh")["tokens_trained"] == load_run("fresh").state["tokens"]


def test_a_file_that_is_called_like_an_extension_does_not_hide_it() -> None:
    Path("yarn").write_text("", encoding="utf-8")
    with counted() as measured:
        program(extend, "one", "yarn", "one/config.json")  # as a shell's out/* gives
    assert measured == ["yarn"]


def test_rows_without_the_factor_of_now_are_measured_again_and_replaced() -> None:
    program(extend, "one", "self_extend")
    result = load_result("one")
    for row in result["rows"]:
        row["factor"] = None if row["extend"] == "self_extend" else row["factor"]
    write_json(Path("one/extrapolation.json"), result)
    with counted() as measured:
        program(extend, "one", "self_extend")
    found = [
        r["factor"]
        for r in load_result("one")["rows"]
        if (r["extend"], r["length"]) == ("self_extend", 32)
    ]
    assert measured == ["self_extend"] and len(found) == 1 and found[0] > 1


OWN = """from torch import Tensor

from posenc import (Extension, Shape, named_file)


class Sharper(Extension):
    '''Scores times the number in a text file.'''

    def __init__(self, shape: Shape, *, file: str) -> None:
        super().__init__()
        self.file = named_file(file, shape.folder)
        self.scale = float(self.file.read_text(encoding="utf-8"))

    def temperature(self, index: Tensor, like: Tensor) -> Tensor:
        return like.new_full((len(index),), self.scale)
"""


def test_an_extension_of_ones_own_with_a_file_of_its_own_serves_any_run() -> None:
    Path("mine.py").write_text(OWN, encoding="utf-8")
    Path("number.txt").write_text("3.5", encoding="utf-8")
    text = "sharper(file='number.txt')"
    program(extend, "one", text, "--pos_file=mine.py")
    assert rows("one")[text, 32]["files_sha256"] == {"number.txt": sha256(Path("number.txt"))}
    program(evaluate, "one", f"--extend={text}", "--pos_file=mine.py", *BYTES)
    fine_tune("tuned", f"--extend={text}", "--pos_file=mine.py")
    assert load_run("tuned", pos_file="mine.py").model.pos.extensions[0].scale == 3.5
    with pytest.raises(UserError, match="was trained with schemes of its own"):
        program(evaluate, "tuned", *BYTES)


def test_a_folder_is_a_run_by_its_path_or_what_it_holds_and_counts_once() -> None:
    Path("yarn").mkdir()
    with counted() as measured:
        program(extend, "one", "./one/", "yarn")
    assert measured == ["yarn"]


def test_training_from_the_start_under_an_extension_is_said(capsys: pytest.CaptureFixture) -> None:
    program(train, *SIZE, "--extend=yarn(factor=2)", "--out_dir=fresh")
    assert "yarn(factor=2) is trained with from the start" in capsys.readouterr().out
    fine_tune("tuned", "--extend=yarn(factor=2)")
    assert "from the start" not in capsys.readouterr().out


# ---- LongRoPE's search


def settings_of(*words: str) -> ExtendSettings:
    return configure(ExtendSettings, [*BYTES, *words], "")[0]


def rotary(pos: str = "rope", train_length: int = 16) -> Scheme:
    """A scheme of one layer with heads of 16 columns."""
    return Scheme(pos, posenc.Shape(1, 16, 16, train_length), 1)


START = extend.starting_trials(rotary(), 4)


def toy(trial: Trial) -> float:
    """A loss that a search can lower: the distance to other factors."""
    return (
        sum(abs(x - (2 + m / 3)) for m, x in enumerate(trial.factors)) + abs(trial.first - 8) / 100
    )


def test_all_that_is_tried_ascends_within_the_range_of_a_start_or_a_draw() -> None:
    tried: list[Trial] = []
    settings = settings_of("--search=4", "--rounds=1")
    extend.evolve([*START.values()], lambda t: tried.append(t) or toy(t), settings)
    assert tried[:3] == [*START.values()]
    assert extend.POPULATION < len(tried) <= extend.POPULATION + 2 * extend.PER_ROUND
    given = {x for t in START.values() for x in t.factors}
    for trial in tried:
        assert list(trial.factors) == sorted(trial.factors) and trial.first in extend.FIRST
        assert all(x in given or 1 <= x <= 5 for x in trial.factors)
    assert any(x > 4 for t in tried for x in t.factors) and any(t.first for t in tried)


def test_half_of_the_children_cross_two_parents_and_half_redraw_three_tenths_of_one() -> None:
    parents, random = [Trial((1.0,) * 8), Trial((9.0,) * 8, 8)], np.random.default_rng(7)
    rounds = [extend.children(parents, 4, random) for _ in range(30)]  # 9 is never drawn
    assert all(len(new) == 2 * extend.PER_ROUND for new in rounds)
    crossed = [t for new in rounds for t in new[extend.PER_ROUND :]]
    assert all({*t.factors} <= {1.0, 9.0} for t in crossed) and {t.first for t in crossed} == {0, 8}
    assert np.mean([9.0 in t.factors for t in crossed]) > 0.9  # of both parents
    redrawn = [
        x not in (1.0, 9.0) for new in rounds for t in new[: extend.PER_ROUND] for x in t.factors
    ]
    assert np.mean(redrawn) == pytest.approx(extend.MUTATED, abs=0.05)


def test_a_search_keeps_the_best_and_finds_the_same_again() -> None:
    def found(rounds: int, seed: int = 1) -> dict[Trial, float]:
        settings = settings_of("--search=4", f"--rounds={rounds}", f"--seed={seed}")
        return extend.evolve([*START.values()], toy, settings)

    six, first = found(6), min(map(toy, START.values()))
    assert [*six.values()] == sorted(map(toy, six)) and len(six) == extend.PARENTS
    assert min(six.values()) < min(found(1).values()) < first
    assert found(6) == six != found(6, seed=2)


def searched(*words: str, folder: str = "one") -> dict[str, Any]:
    """extend.py --search=2 on a population of a few; the result file."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("POPULATION", 6), ("PARENTS", 4), ("PER_ROUND", 2)):
            patch.setattr(extend, name, value)
        program(extend, folder, "--search=2", "--dataset=roomy", *BYTES, *words)
    return read_json(Path(folder) / "longrope-2.json")


def opened(folder: str = "one") -> Run:
    """A run, on the CPU in float32."""
    return extend.open_run(folder, settings_of())


@torch.no_grad()
def losses_at_32(trained: Run, corpus: data.Corpus) -> np.ndarray:
    """Mean nats at each place of fixed_targets at 32 tokens, (64,), under the active extension."""
    places = evaluate.find_places(corpus)
    tester = evaluate.Tester(trained.model, corpus, trained.compute)
    return tester.score(evaluate.fixed_targets(places, 32))[0] / places.scored


def test_what_a_search_finds_is_a_file_for_longrope_that_gives_the_loss_it_reports(
    capsys: pytest.CaptureFixture,
) -> None:
    found = searched("--rounds=2")
    assert (
        set(found["loss_unseen"]) == {"pi", "ntk", "yarn", "search"}
        and len(found["long_factor"]) == 4
    )
    said = capsys.readouterr().out
    text = re.search(r'--extend="(.*)"', said)[1]
    program(extend, "one", text, "--dataset=roomy", "--dtype=float32")
    row = rows("one", "roomy")[text, 32]
    assert row["files_sha256"] == {"longrope-2.json": sha256(Path("one/longrope-2.json"))}
    assert found["loss_unseen"]["search"] == pytest.approx(row["nats"], abs=1e-12)
    trained, corpus = opened(), data.load("roomy")
    trained.model.extend(text)
    chosen_by = evaluate.tuning_loss(evaluate.Tester(trained.model, corpus), 32, evaluate.WINDOWS)
    assert chosen_by == found["loss_searched"] != found["loss_unseen"]["search"]
    best = min(("pi", "ntk", "yarn"), key=lambda name: found["loss_unseen"][name])
    losses = losses_at_32(trained, corpus)
    start = extend.starting_trials(trained.model.pos, 2)
    extend.put_on_longrope(trained, start[best], 2)
    gained = losses_at_32(trained, corpus) - losses
    wanted = {"nats": gained.mean(), "stderr": gained.std(ddof=1) / 8, "blocks": 64}
    assert found["gain_unseen"] == pytest.approx({"over": best} | wanted, abs=1e-7)
    assert searched("--rounds=2") == found
    Path("one/longrope-2.json").write_text(
        json.dumps({"long_factor": [1, 1, 1, 1.5]}), encoding="utf-8"
    )
    with counted() as measured:
        program(extend, "one", text, "--dataset=roomy", "--dtype=float32")
    assert measured == [text]  # another file under the same name


def test_a_search_that_is_stopped_leaves_the_result_of_an_earlier_one() -> None:
    before = {**searched("--rounds=1")}

    def stop(*_: object) -> float:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "tuning_loss", stop)
        with pytest.raises(KeyboardInterrupt):
            searched("--rounds=3", "--seed=5")
    assert read_json(Path("one/longrope-2.json")) == before


def test_the_first_positions_that_a_search_keeps_are_in_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        evaluate, "tuning_loss", lambda tester, *_: 1 / (1 + tester.model.pos.extensions[0].first)
    )
    found = searched("--rounds=3")
    assert found["first"] > 0 and found["loss_searched"] == 1 / (1 + found["first"])


def test_a_fine_tuned_run_is_searched_for_multiples_of_its_first_length(
    capsys: pytest.CaptureFixture,
) -> None:
    fine_tune("tuned")
    assert searched("--rounds=1", folder="tuned")["train_length"] == 16
    assert "tuned, 32 tokens" in capsys.readouterr().out


def test_rows_on_the_text_that_a_file_was_found_on_say_so() -> None:
    searched("--rounds=1")
    text = "longrope(file='one/longrope-2.json')"
    for _ in range(2):
        program(extend, "one", text, "--dataset=roomy")
        found = rows("one", "roomy")
        assert "its file was found on" in found[text, 32]["note"]
        assert "its file was found on" not in found[None, 32].get("note", "")
        assert f"{text}: its file was found on" in table()
        program(evaluate, "one", f"--extend={text}", "--dataset=roomy", *BYTES)
        digest = {"longrope-2.json": sha256(Path("one/longrope-2.json"))}
        assert rows("one", "roomy")[text, 32]["files_sha256"] == digest
    program(extend, "one", text, "--dataset=other")
    assert "note" not in rows("one", "other")[text, 32]


def test_a_model_without_finite_losses_is_not_searched() -> None:
    trained = opened()
    with torch.no_grad():
        trained.model.lm_head.weight.fill_(math.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extend, "open_run", lambda *_: trained)
        with pytest.raises(UserError, match="one: a loss at 32 tokens is not finite"):
            searched()
    assert not Path("one/longrope-2.json").exists()


def test_a_search_where_nothing_turns_or_too_little_text_is_is_a_sentence() -> None:
    with pytest.raises(UserError, match="alibi has no rotary piece"):
        program(extend, "alibi", "--search=2", *BYTES)
    with pytest.raises(UserError, match="windows of at most 2048 tokens: use a corpus of longer"):
        program(extend, "one", "--search=9999", *BYTES)
    with pytest.raises(UserError, match="too little validation text to choose by"):
        program(extend, "one", "--search=2", *BYTES)
    assert not list(Path("one").glob("*longrope*"))


def test_a_search_never_replaces_the_file_that_a_run_was_trained_with() -> None:
    Path("longrope-2.json").write_text(
        json.dumps({"long_factor": [1, 1.5, 2, 2]}), encoding="utf-8"
    )
    fine_tune("tuned", "--extend=longrope(file='longrope-2.json')")
    before = files("tuned")
    with pytest.raises(UserError, match="was trained with its own longrope-2.json"):
        program(extend, "tuned", "--search=2", *BYTES)
    assert files("tuned") == before


def test_a_search_starts_from_what_pi_ntk_and_yarn_divide_by() -> None:
    inv_freq = posenc.rope_frequencies(16)[0]
    for text, trial in extend.starting_trials(rotary(train_length=256), 4).items():
        divided, _ = extended_frequencies(f"{text}(factor=4)", 16, train_length=256)
        assert trial.factors == pytest.approx((inv_freq / divided).tolist()) and trial.first == 0


def test_pairs_that_a_scheme_stills_stay_still_in_a_search() -> None:
    for trial in extend.starting_trials(rotary("rope(p=0.5)"), 4).values():
        assert all(math.isfinite(x) and x >= 1 for x in trial.factors)


@pytest.mark.slow
def test_compiled_code_takes_any_number_of_lengths_and_drops_positions_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compiled(f, **how, backend="eager"))
    monkeypatch.setattr(train.device, "missing_compiler", lambda: "")
    settings, _ = configure(
        TrainSettings,
        [
            *SIZE,
            "--mixed_lengths=2,4,8,16,32,64",
            "--max_iters=12",
            "--drop_pos=0.5",
            "--compile=True",
        ],
        "",
    )
    training = train.Training(start_run(settings, CPU))
    train.train(training, Log(training.start), train.Stop())
    assert training.step == 12
