"""Sampling: the prompt, text that is cut anywhere, where it stops, and the same text for a seed."""

import io
import sys
from pathlib import Path

import pytest
from conftest import call
from test_train import run

import sample
from configurable import UserError

TEXT = "Grüße, 世界 🎉 END of it"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_text_that_is_cut_inside_characters_comes_out_whole(size: int) -> None:
    content = TEXT.encode()
    pieces = [content[k : k + size] for k in range(0, len(content), size)]
    assert "".join(sample.until("", pieces)) == TEXT
    assert "".join(sample.until("END", pieces)) == TEXT.partition("END")[0]
    assert "".join(sample.until("ENDE", pieces)) == TEXT
    assert "".join(sample.until("", [b"a\xe4", b"\xff"])) == "a\ufffd\ufffd"


def test_only_what_may_begin_the_stop_string_is_held_back() -> None:
    pieces = iter([b"ab", b"E", b"N", b"x", b"END", b"never"])
    assert [text for text in sample.until("END", pieces) if text] == ["ab", "ENx"]
    assert next(pieces) == b"never"


def test_a_prompt_is_text_a_file_or_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(TEXT, encoding="utf-8-sig")
    stdin = io.TextIOWrapper(io.BytesIO(b"from a pipe"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [sample.read_prompt(x) for x in ("a=b", f"FILE:{path}", "-")] == [
        "a=b",
        TEXT,
        "from a pipe",
    ]
    path.write_bytes(b"\xff")
    for start, sentence in (
        ("", "empty"),
        (f"FILE:{path}", "no text in UTF-8"),
        ("FILE:nothing.txt", "check the name"),
    ):
        with pytest.raises(UserError, match=sentence):
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
    out, err = text("--max_new_tokens=12", "--num_samples=2")
    first, second = out.split(f"{sample.SEPARATOR}\n")
    assert first.startswith("1 times ") and second.startswith("1 times ") and first != second
    assert text("--max_new_tokens=12", "--num_samples=2")[0] == out
    assert text("--max_new_tokens=12", "--seed=1338")[0] == second
    assert "learned defines 16 positions" in err
    assert "trained on 16 tokens" in err and "tokens/s" in err
    greedy = text("--max_new_tokens=12", "--temperature=0")[0]
    for words in (["--top_k=1"], ["--top_p=1e-6"]):
        assert text("--max_new_tokens=12", *words)[0] == greedy
    stopped = text("--max_new_tokens=12", "--temperature=0", f"--stop={greedy[9:11]}")[0]
    assert greedy.startswith(stopped.rstrip("\n")) and len(stopped) < len(greedy)


def test_other_than_one_run_folder_is_refused(here: None) -> None:
    for words in ([], ["a", "b"], ["nothing"]):
        with pytest.raises(UserError, match="run folder"):
            call(sample, *words)
