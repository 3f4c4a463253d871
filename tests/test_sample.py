"""Sampling: the prompt, characters that are cut anywhere, and the same text for a seed."""

from pathlib import Path

import pytest
import torch
from conftest import call
from test_train import run

import sample
from common.errors import UserError
from model import GPT

TEXT = "Grüße, 世界 🎉 END of it"


def test_a_prompt_is_text_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(TEXT, encoding="utf-8-sig")
    assert [sample.read_prompt(x) for x in ("a=b", f"FILE:{path}")] == ["a=b", TEXT]
    path.write_bytes(b"\xff")
    for start, error in (
        ("", "empty"),
        (f"FILE:{path}", "is not UTF-8 text"),
        ("\udcff", "is not UTF-8 text"),  # as Python reads a byte that is not UTF-8
        ("FILE:nothing.txt", "nothing.txt"),
    ):
        with pytest.raises((UserError, FileNotFoundError), match=error):
            sample.read_prompt(start)


@pytest.fixture
def text(here: None, capsys: pytest.CaptureFixture):
    """text(words): what sample.py prints with a small run; and what it says beside it."""
    run("--out_dir=run", "--pos=learned", "--learning_rate=0.05")
    capsys.readouterr()

    def printed(*words: str) -> tuple[str, str]:
        assert call(sample, "run", "--device=cpu", "--start=1 times ", *words) == 0
        return capsys.readouterr()

    return printed


def test_the_same_seed_gives_the_same_text_and_settings_reach_the_model(text) -> None:
    out, _ = text("--max_new_tokens=12", "--num_samples=2")
    first, second = out.split(f"{sample.SEPARATOR}\n")
    assert first.startswith("1 times ") and second.startswith("1 times ") and first != second
    assert text("--max_new_tokens=12", "--num_samples=2")[0] == out
    assert text("--max_new_tokens=12", "--seed=1338")[0] == second
    greedy = text("--max_new_tokens=12", "--temperature=0")[0]
    for words in (["--top_k=1"], ["--temperature=1e-50"]):
        assert text("--max_new_tokens=12", *words)[0] == greedy


def test_characters_that_are_cut_into_tokens_come_out_whole(text, monkeypatch) -> None:
    def stream(self, idx, *rest):
        yield from torch.tensor([*TEXT.encode(), 0xE4])[:, None, None]

    monkeypatch.setattr(GPT, "stream", stream)
    assert text()[0] == f"1 times {TEXT}\ufffd\n"
