"""A protocol is one entry of a tuple and one function: the rest of the project asks the entry."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import SIZE, call

import evaluate
import report
import train
from common.errors import UserError
from configurable import TrainSettings, configure
from measure import protocols
from measure.protocols import Protocol, fixed_targets
from run.folder import RunFolder
from tables.figures import plot_rows
from tables.records import load_rows, select
from tables.statistics import over_seeds

pytestmark = pytest.mark.usefixtures("here")


def first_places(places, length):
    """The windows of the first four places, whatever eval_windows are."""
    return fixed_targets(replace(places, ends=places.ends[:4]), length)


MINE = Protocol(
    "mine",
    first_places,
    limits_keys=True,
    in_places=False,
    same_targets=True,
    over_seeds=True,
    columns={"mine": "mine: {n:.0f} targets of four places alone"},
)


def test_a_protocol_of_one_entry_is_measured_tabled_drawn_and_needed_to_finish(monkeypatch, capsys):
    words = [*SIZE, "--pos=nope", "--eval_lengths=8,16,64"]
    for seed in (1, 2):
        assert call(train, *words, f"--seed={seed}", f"--out_dir=s{seed}") == 0
    asked, _ = configure(TrainSettings, [*words, "--seed=1", "--out_dir=s1"])

    def finished_result():
        return RunFolder.open(asked).finished_result()

    assert finished_result()

    monkeypatch.setattr(protocols, "PROTOCOLS", (*protocols.PROTOCOLS, MINE))
    assert finished_result() is None
    capsys.readouterr()
    for seed in (1, 2):  # resumed: nothing is left to train
        assert call(train, *words, f"--seed={seed}", f"--out_dir=s{seed}") == 0
    said = capsys.readouterr().out
    assert said.count("mine at 64: ") == 2 and "step 8/8" not in said
    assert "\nmine: 128 targets of four places alone\n" in said
    assert finished_result()
    with monkeypatch.context() as patch:  # a finished run is not tested again
        patch.delattr("measure.extrapolation.extrapolation")
        assert call(train, *words, "--seed=1", "--out_dir=s1") == 0

    rows = select(load_rows(["s1", "s2"]))
    mine = rows[rows.protocol == "mine"]
    assert mine.windows.tolist() == [4] * 6 and mine.targets.nunique() == 1
    windowed = rows[(rows.protocol == "windowed") & (rows.run == "s1")].set_index("length")
    nats = mine[mine.run == "s1"].set_index("length").nats
    for length in (8, 16, 64):  # the same targets, seen with the same keys
        blocks = windowed.block_nats[length][:4]
        assert nats[length] == pytest.approx(sum(blocks) / 4, abs=1e-6)
    # over seeds it has lines and tables of its own
    table = over_seeds(rows).set_index(["protocol", "label", "length"])
    assert table.loc["mine", "nope", 64]["mean"] == pytest.approx(
        mine[mine.length == 64].nats.mean()
    )
    assert table.loc["fixed_targets", "nope", 64].seeds == 2
    capsys.readouterr()
    assert call(report, "s1", "s2") == 0
    assert "; mine by test length N, mean" in capsys.readouterr().out
    assert plot_rows(mine, "mine.svg")
    # and it can be asked for by name
    assert call(evaluate, "s1", "--protocols=mine", "--device=cpu", "--eval_lengths=32") == 0
    assert "fixed_targets at 32" not in capsys.readouterr().out
    assert 32 in set(load_rows("s1").query("protocol == 'mine'").length)
    assert Path("s1/extrapolation.png").exists()


def test_a_name_that_is_no_protocol_of_text_is_refused_before_a_model_is_read():
    for name in ("fixed", "recall", "key_targets"):
        with pytest.raises(UserError, match=f"'{name}' is none of fixed_targets, windowed, nonove"):
            call(evaluate, "absent", f"--protocols=windowed,{name}")
    with pytest.raises(UserError, match="there is no protocol 'recal'"):
        protocols.find_protocol("recal")
