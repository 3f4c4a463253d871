"""python -m tools.explain: the map of layers, the options, and the table against formulas by hand."""

import json
import math
import re
import sys
import tomllib

import pytest
import torch

from common.errors import UserError
from posenc import Shape
from scheme import Catalogue, Scheme, extended_frequencies
from tools import explain

L, N = 64, 256


def pairs(pos: str, extend: str = ""):
    """The table of the first rotary piece, for heads of 16 columns."""
    scheme = Scheme(pos, Shape(2, 16, 32, L), 2)
    scheme.extend(extend)
    return explain.pair_table(scheme, scheme.rotary[0], N)


def test_turns_and_wavelengths_are_those_of_the_formula():
    table = pairs("rope(base=100)")
    for m, row in table.iterrows():
        wavelength = 2 * math.pi * 100 ** (2 * m / 16)
        assert row["wavelength"] == pytest.approx(wavelength)
        assert row["turns trained"] == pytest.approx((L - 1) / wavelength)
        assert row["turns at N"] == pytest.approx((N - 1) / wavelength)
        assert row["all seen"] == (wavelength <= L - 1)


@pytest.mark.parametrize("extend", ["pi(factor=4)", "yarn(factor=4)", "llama3(factor=4)", "ntk"])
def test_an_extension_is_that_of_extended_frequencies(extend):
    table = pairs("rope", extend)
    inv_freq, _ = extended_frequencies(extend, 16, train_length=L, length=N)
    wavelengths = torch.tensor(table["wavelength at N"].to_numpy())
    torch.testing.assert_close(wavelengths, 2 * math.pi / inv_freq)
    slow = table["turns trained"] < 1
    if extend == "pi(factor=4)":  # every distance is one of training
        assert table["all seen"].all() and not pairs("rope")["all seen"][slow].any()


def test_random_positions_of_training_are_seen():
    assert pairs(f"randomized(max={N}) + rope")["all seen"].all()
    assert not pairs("rope")["all seen"].all()


def explained(monkeypatch, capsys, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["explain", "--block_size=64", "--n_embd=64", *words])
    explain.main()
    return capsys.readouterr().out


def test_the_program_says_what_an_expression_is(monkeypatch, capsys):
    text = explained(monkeypatch, capsys, "rope(base=500) | fire")
    assert "rope(base=500)" in text and "0, 2" in text and "1, 3" in text
    assert "options: base=10000.0" in text and "wavelength" in text and "parameters: " in text
    text = explained(monkeypatch, capsys, "yarn(factor=8)", "--length=512")
    assert "extended by yarn(factor=8)" in text and "N = 512" in text
    assert "turned columns x 1.4591" in text  # (0.1 ln 8 + 1)^2
    assert "turns trained" not in explained(monkeypatch, capsys, "alibi")
    text = explained(monkeypatch, capsys, "none | yarn(factor=8)")
    assert "extended by none | yarn(factor=8)" in text
    text = explained(monkeypatch, capsys, "randomized(max=2048) + rope")  # positions are drawn
    assert "turns trained" in text
    with pytest.raises(UserError, match="did you mean alibi"):
        explained(monkeypatch, capsys, "alib")


def test_a_class_is_explained_once_and_what_an_option_needs_is_a_name(monkeypatch, capsys):
    text = explained(monkeypatch, capsys, "rope + sink", "--n_layer=3")
    assert text.count("\nsink: ") == 1 and text.count("parameters: s (4,)") == 1
    text = explained(monkeypatch, capsys, "window(size=4) | window(size=8)")
    assert text.count("options: size, sinks=0\n") == 1


def test_a_class_without_a_docstring_does_not_show_the_contract(monkeypatch, capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from posenc import Piece\n\n\nclass Plain(Piece):\n    def mask(self, i, j):\n        return j <= i\n"
    )
    text = explained(monkeypatch, capsys, "plain", f"--pos_file={path}")
    assert "\nplain: no docstring\n" in text


def test_a_branch_in_no_layer_is_warned_of(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["explain", "rope | alibi", "--n_layer=1"])
    explain.main()
    assert capsys.readouterr().err.startswith("warning: alibi is in no layer")


def test_a_scheme_of_ones_own_is_examined_and_explained(monkeypatch, capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from posenc import Piece\n\n\nclass Root(Piece):\n"
        '    """score -= sqrt(distance)"""\n\n'
        "    def bias(self, h, i, j):\n        return -((i - j).sqrt())\n"
    )
    text = explained(monkeypatch, capsys, "root", f"--pos_file={path}")
    assert "checked: causal" in text and "score -= sqrt(distance)" in text


def test_every_scheme_has_a_verdict_in_sentences_and_what_they_rest_on_is_there():
    found = tomllib.loads(explain.VERDICTS.read_text(encoding="utf-8"))
    assert list(found) == list(
        Catalogue().pieces
    )  # in order, so that none stands there twice or is lost
    for name in found:
        for entry in found[name]:
            assert {"says"} <= set(entry) <= {"says", "results"}
            assert re.fullmatch(r"[A-Z`].*\.", entry["says"]) or entry["says"].startswith("arXiv")
            assert (explain.VERDICTS.parent / entry.get("results", "")).exists()


def test_a_scheme_is_explained_with_its_verdict(monkeypatch, capsys):
    text = explained(monkeypatch, capsys, "rope + xsa")
    assert "\nverdict: `rope + xsa` breaks as rope does;" in text
    assert "[results/board/gpu.md]\n" in text


GEMMA = dict(
    model_type="gemma3_text",
    num_hidden_layers=12,
    num_attention_heads=4,
    hidden_size=64,
    head_dim=16,
    sliding_window=512,
    max_position_embeddings=4096,
    rope_scaling=dict(rope_type="linear", factor=8.0),
)


def test_a_model_is_explained_layer_by_layer(monkeypatch, capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GEMMA))
    for word in (str(tmp_path), str(path)):
        monkeypatch.setattr(sys, "argv", ["explain", word, "--length=8192"])
        assert explain.main() == 0
        text = capsys.readouterr().out
        assert "pos     5 * (rope(base=10000.0) + window(size=512)) | rope(base=1000000.0)" in text
        assert "extend  5 * none | pi(factor=8.0)" in text
        assert "layer 0, one of 10 alike:" in text and "layer 5, one of 2 alike:" in text
        assert "16 of 16 columns turn" in text and "N = 8192" in text
        assert "NOTHING READS" not in text


def test_a_model_with_a_key_that_nothing_reads_is_an_error(monkeypatch, capsys, tmp_path):
    scaling = dict(rope_type="dynamic", factor=2.0)
    config = GEMMA | dict(model_type="glm", rope_scaling=scaling, rope_thetha=1.0)
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(sys, "argv", ["explain", str(tmp_path)])
    assert explain.main() == 1
    text = capsys.readouterr().out
    assert "NOTHING READS rope_thetha: did you mean rope_theta?" in text
    assert "NOTHING READS sliding_window" in text
    assert "8 of 16 columns turn" in text and "the frequencies change past 4096 tokens" in text
    # what is named after it is explained, too, and drawn with it
    monkeypatch.setattr(
        sys, "argv", ["explain", str(tmp_path), "alibi", f"--out={tmp_path}/both.png"]
    )
    assert explain.main() == 1
    text = capsys.readouterr().out
    assert "NOTHING READS rope_thetha" in text and "alibi, trained at L = 128" in text
    assert (tmp_path / "both.png").stat().st_size > 1000


def test_factors_are_read_from_the_file_that_is_named(monkeypatch, capsys, tmp_path):
    for name, factor in (("a.json", 2.0), ("config.json", 50.0)):
        scaling = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [factor] * 8}
        config = {"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4}
        config |= {"num_hidden_layers": 2, "max_position_embeddings": 4096}
        config |= {"original_max_position_embeddings": 512, "rope_scaling": scaling}
        (tmp_path / name).write_text(json.dumps(config))
    monkeypatch.setattr(sys, "argv", ["explain", str(tmp_path / "a.json"), "--length=4096"])
    assert explain.main() == 0
    assert "12.566" in capsys.readouterr().out  # 2 x 2 pi


def test_a_config_that_cannot_be_read_is_another_exit_status(monkeypatch, capsys, tmp_path):
    path = tmp_path / "config.json"
    for text, sentence in (
        ("[1]", "missing or holds no JSON object"),
        ('{"model_type": "new"}', "type new is unknown"),
        (json.dumps(GEMMA | dict(layer_types=[0, 1])), "2 types for 12 layers"),
        (json.dumps(GEMMA | dict(layer_types=[[]] * 12)), "is no config.json of a model"),
        (json.dumps(GEMMA | dict(rope_scaling="linear")), "is a text: write a number"),
        (json.dumps(GEMMA | dict(max_position_embeddings="4096")), "is no whole number"),
        (json.dumps(GEMMA | dict(rope_theta="10000")), "is a text: write a number"),
    ):
        path.write_text(text)
        monkeypatch.setattr(sys, "argv", ["explain", str(path)])
        assert explain.main() == 2
        assert sentence in capsys.readouterr().err
