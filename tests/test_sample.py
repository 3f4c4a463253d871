"""Sampling: the prompt, text as whole characters, stop strings, seeds, and what is said past a limit."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import data
import sample
from configurable import SampleSettings, TrainSettings, UserError, run_program
from model import GPT
from runs.checkpoint import load_run, save_checkpoint
from runs.device import CPU
from runs.start import run_corpus, start_run

TEXT = "Whether 'tis nobler in the mind to suffer — naïve café 日本 \n" * 8
CHARACTERS = "".join(sorted(set(TEXT)))
LENGTH = 16  # the training length of the models here


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of bytes and one of characters."""
    root = tmp_path_factory.mktemp("corpora")
    for name, tokenizer in (
        ("bytes", data.ByteTokenizer()),
        ("char", data.CharTokenizer(CHARACTERS)),
    ):
        ids = np.array(tokenizer.encode(TEXT))
        data.write_corpus(
            root / name,
            {"train": [ids], "val": [ids]},
            tokenizer=name,
            source="here",
            rule="all",
            characters=CHARACTERS,
        )
    return root


@pytest.fixture
def make_run(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make the run folder of an untrained model: make_run(pos="rope", dataset="bytes")."""
    load = data.load
    monkeypatch.setattr(data, "load", lambda name: load(name, corpora))

    def make(pos: str = "rope", dataset: str = "bytes") -> Path:
        folder = tmp_path / "run"
        sizes = {"block_size": LENGTH, "n_layer": 1, "n_head": 2, "n_embd": 16, "seed": 1}
        settings = TrainSettings(pos=pos, dataset=dataset, out_dir=str(folder), **sizes)
        with contextlib.redirect_stdout(io.StringIO()):
            start = start_run(settings, CPU)
        state = {name: {} for name in ("optimizer", "scaler")} | {"step": 0, "tokens": 0}
        state |= {"original_length": LENGTH, "train_lengths": [LENGTH]}
        state |= {"gpt": asdict(start.model.config), "settings": asdict(start.settings)}
        save_checkpoint(folder, state | {"model": start.model.state_dict()})
        return folder

    return make


def run_main(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    """sample.main() on a command line."""
    argv = ["sample.py", str(folder), "--device=cpu", "--dtype=float32", *words]
    monkeypatch.setattr(sys, "argv", argv)
    return sample.main()


def speak(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[int]:
    """Let every model say these bytes, a byte a token; returns the list of the tokens drawn so far."""
    drawn: list[int] = []

    def stream(
        self: GPT, idx: torch.Tensor, count: int, logs: list, **how: object
    ) -> Iterator[torch.Tensor]:
        for token in content:
            drawn.append(token)
            logs.append(torch.tensor([[-0.5]]))
            yield torch.tensor([[token]])

    monkeypatch.setattr(GPT, "stream", stream)
    return drawn


# ---- whole characters and stop strings


@given(st.text(), st.lists(st.integers(0, 40)))
def test_text_cut_inside_characters_comes_out_whole(text: str, cuts: list[int]) -> None:
    content = text.encode("utf-8")
    edges = [0, *sorted(min(c, len(content)) for c in cuts), len(content)]
    pieces = [content[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert "".join(sample.until("", pieces)) == text


def test_a_character_waits_for_its_last_byte() -> None:
    cut = [bytes([b]) for b in "é日".encode()]
    given = sample.until("", iter(cut))
    assert next(given) == "é" and next(given) == "日" and list(given) == [""]
    assert list(sample.until("", iter(cut[:1]))) == ["\ufffd", ""]


def test_a_last_incomplete_character_and_bytes_that_are_no_text_become_the_replacement_character() -> (
    None
):
    assert "".join(sample.until("", [b"ab\xe6\x97"])) == "ab\ufffd"
    assert "".join(sample.until("", [b"a\xff", b"b"])) == "a\ufffdb"


@given(st.lists(st.text("ab.", max_size=4)), st.text("ab.", max_size=4))
def test_text_ends_before_the_stop_string_however_it_is_cut(texts: list[str], stop: str) -> None:
    whole = "".join(texts)
    printed = whole.partition(stop)[0] if stop else whole
    assert "".join(sample.until(stop, map(str.encode, texts))) == printed


@given(st.lists(st.text("ab.", max_size=4)), st.text("ab.", min_size=1, max_size=4))
def test_only_what_may_begin_the_stop_string_is_held_back(texts: list[str], stop: str) -> None:
    given_out, seen = "", ""

    def watched() -> Iterator[str]:
        nonlocal seen
        for text in texts:  # here all that was seen before has been dealt with
            held = seen[len(given_out) :]
            assert stop.startswith(held) and held != stop
            seen += text
            yield text.encode()

    for text in sample.until(stop, watched()):
        given_out += text


# ---- prompts


def test_a_prompt_is_text_or_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_bytes("déjà\n".encode())
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO("日本".encode()), encoding="latin-1")
    )
    assert sample.read_prompt("a=b") == "a=b"
    assert sample.read_prompt(f"FILE:{tmp_path / 'prompt.txt'}") == "déjà\n"
    assert sample.read_prompt("-") == "日本"


def test_a_prompt_that_is_missing_or_empty_or_no_text_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"ab\xff")
    with pytest.raises(UserError, match="the prompt is empty"):
        sample.read_prompt("")
    for name, said in (
        ("empty", "empty"),
        ("binary", "not UTF-8 text .byte 2"),
        ("absent", "No such file"),
        (".", "cannot be read"),
    ):
        with pytest.raises(UserError, match=said):
            sample.read_prompt(f"FILE:{tmp_path / name}")


def test_a_character_that_the_corpus_lacks_is_named(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="'Q' at place 4"):
        run_main(monkeypatch, make_run(dataset="char"), "--start=the Q")


# ---- the command


def test_the_prompt_stands_before_each_sample_and_a_line_between_two(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    speak(monkeypatch, "ïb".encode())
    assert not run_main(monkeypatch, make_run(), "--start=To be", "--num_samples=2")
    assert capsys.readouterr().out == "To beïb\n---------------\nTo beïb\n"


def test_text_is_given_out_before_the_next_token_is_drawn(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = speak(monkeypatch, b"xyz")
    trained = load_run(make_run())
    settings = SampleSettings()
    taken = sample.Drawn(trained, data.ByteTokenizer(), "ab", settings)
    pieces = sample.samples(taken, "ab", settings)
    assert (next(pieces), drawn) == ("ab", [])
    assert (next(pieces), drawn) == ("x", [*b"x"])
    assert (next(pieces), drawn) == ("y", [*b"xy"])


def test_a_stop_string_over_several_tokens_ends_the_sample_and_is_not_printed(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    drawn = speak(monkeypatch, "one EN two é\nEND three".encode())
    run_main(monkeypatch, make_run(), "--start=>", "--stop=é\nEND")
    assert capsys.readouterr().out == ">one EN two \n"
    assert bytes(drawn).endswith(b"\nEND")  # not a token more


def test_the_end_of_text_token_ends_a_sample(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    speak(monkeypatch, b"one|two")
    monkeypatch.setattr(data.ByteTokenizer, "end", ord("|"))
    run_main(monkeypatch, make_run(), "--start=>")
    assert capsys.readouterr().out == ">one\n"


def test_the_same_seed_gives_the_same_text_and_sample_n_is_that_of_seed_plus_n(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder, texts = make_run(dataset="char"), {}
    for name, words in {"a": ["--seed=5"], "again": ["--seed=5"], "b": ["--seed=6"]}.items():
        run_main(monkeypatch, folder, "--start=the", "--max_new_tokens=30", *words)
        texts[name] = capsys.readouterr().out
    assert len(texts["a"]) == len("the") + 30 + 1
    assert texts["a"] == texts["again"] != texts["b"]
    run_main(
        monkeypatch, folder, "--start=the", "--max_new_tokens=30", "--seed=5", "--num_samples=2"
    )
    assert capsys.readouterr().out == texts["a"] + "---------------\n" + texts["b"]


def test_temperature_top_k_and_top_p_reach_the_model(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder, texts = make_run(dataset="char"), set()
    for words in (
        "--temperature=0",
        "--top_k=1",
        "--top_p=1e-6",
        "--top_p=1e-300",
    ):  # ways to take the likeliest token
        run_main(monkeypatch, folder, "--start=the", "--max_new_tokens=20", words)
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


def test_json_tells_tokens_and_their_log_probabilities(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder, words = make_run(dataset="char"), ("--start=the", "--max_new_tokens=9", "--seed=4")
    run_main(monkeypatch, folder, *words)
    text = capsys.readouterr().out
    run_main(monkeypatch, folder, *words, "--json", "--num_samples=2")
    said = capsys.readouterr()
    first, second = map(json.loads, said.out.splitlines())
    assert first["prompt"] + first["text"] + "\n" == text and first["text"] != second["text"]
    assert "".join(first["texts"]) == first["text"]
    run = load_run(folder)
    idx = torch.tensor([run_corpus(run).tokenizer.encode("the") + first["tokens"]])
    with torch.no_grad():
        nats = run.model.losses(idx[:, :-1], idx[:, 1:])[0, 2:]
    torch.testing.assert_close(torch.tensor(first["log_probabilities"]), -nats, rtol=0, atol=1e-4)
    assert " tokens/s" in said.err


def test_json_ends_a_text_before_the_stop_string(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = make_run()
    speak(monkeypatch, b"one END two")
    run_main(monkeypatch, folder, "--stop=END", "--json", "--start=x")
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == "one " and bytes(told["tokens"]) == b"one END"
    assert told["log_probabilities"] == [-0.5] * 7
    speak(monkeypatch, b"")
    run_main(monkeypatch, folder, "--json", "--start=x")
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == "" and told["tokens"] == told["texts"] == []


def test_an_interrupted_text_ends_with_130(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(self: GPT, *_: object, **how: object) -> Iterator[torch.Tensor]:
        raise KeyboardInterrupt
        yield

    folder = make_run()
    monkeypatch.setattr(GPT, "stream", stream)
    with pytest.raises(SystemExit) as ended:
        run_program(lambda: run_main(monkeypatch, folder))
    assert ended.value.code == 130


# ---- past a limit


def test_a_scheme_bounded_by_its_table_goes_on_and_says_so_once(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = make_run("learned", "char")
    run_main(monkeypatch, folder, "--start=the", "--max_new_tokens=40", "--num_samples=2")
    said = capsys.readouterr()
    assert [len(text) for text in said.out.split("---------------\n")] == [len("the") + 40 + 1] * 2
    assert said.err.count("note:") == 1
    assert f"note: learned defines {LENGTH} positions, and the text may have 43 tokens" in said.err


def test_a_text_past_the_training_length_is_remarked_with_the_scheme(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = make_run("alibi")
    run_main(monkeypatch, folder, "--start=the", f"--max_new_tokens={LENGTH - 3}")
    assert "note:" not in capsys.readouterr().err
    run_main(monkeypatch, folder, "--start=the", f"--max_new_tokens={LENGTH - 2}")
    assert (
        f"note: alibi was trained on {LENGTH} tokens, and may be given {LENGTH + 1} here"
        in capsys.readouterr().err
    )


def test_positions_that_end_past_the_training_length_are_remarked_both_ways(
    make_run: Callable,
) -> None:
    trained = load_run(make_run("randomized(max=24) + rope"))
    assert len(list(sample.remarks(trained, LENGTH))) == 0
    assert len(list(sample.remarks(trained, 24))) == 1
    assert len(list(sample.remarks(trained, 25))) == 2


def test_a_text_that_is_no_square_image_is_remarked(make_run: Callable) -> None:
    trained = load_run(make_run("rope2d"))
    assert not list(sample.remarks(trained, 10))
    (note,) = sample.remarks(trained, 12)
    assert "takes a text of 12 tokens for rows of 3 patches" in note


# ---- mistakes


def test_other_than_one_run_folder_is_refused(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="one run folder, not 2"):
        run_main(monkeypatch, make_run(), "out/another")


def test_a_folder_that_holds_no_run_is_refused(
    tmp_path: Path, make_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="config.json"):
        run_main(monkeypatch, tmp_path)


def test_a_corpus_that_was_made_anew_with_another_vocabulary_is_refused(
    make_run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, load = make_run(dataset="bytes"), data.load
    monkeypatch.setattr(data, "load", lambda name: load("char"))
    said = f"trained with 256 different tokens, char has {len(CHARACTERS)}"
    with pytest.raises(UserError, match=said):
        run_main(monkeypatch, folder)


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_reader_who_has_seen_enough_is_no_error(make_run: Callable, corpora: Path) -> None:
    folder, repository = make_run(dataset="char"), Path(sample.__file__).parent
    script = (
        "import sys, pathlib; import configurable, data, sample; "
        "data.load.__defaults__ = (pathlib.Path(sys.argv.pop()),); "
        "configurable.run_program(sample.main)"
    )
    words = [
        str(folder),
        "--device=cpu",
        "--start=the",
        "--max_new_tokens=300",
        "--num_samples=30",
        str(corpora),
    ]
    with subprocess.Popen(
        [sys.executable, "-c", script, *words],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout.read(3) == b"the"
        child.stdout.close()
        said = child.stderr.read()
        assert b"BrokenPipe" not in said and b"error" not in said
        assert child.wait() == 141


def test_compile_compiles_the_step_of_a_token_and_changes_no_text(make_run, monkeypatch, capsys):
    folder, words = make_run(), ("--max_new_tokens=8", "--temperature=0")
    run_main(monkeypatch, folder, *words)
    plain, asked = capsys.readouterr().out, []
    usual = GPT.compile
    monkeypatch.setattr(
        GPT, "compile", lambda model, **how: asked.append(how) or usual(model, backend="eager")
    )
    run_main(monkeypatch, folder, *words, "--compile")
    said = capsys.readouterr()
    assert said.out == plain and "compiling a step" in said.err and asked == [{"disable": False}]
    monkeypatch.setattr(sample.device, "missing_compiler", lambda: "no C++ compiler was found")
    run_main(monkeypatch, folder, *words, "--compile")
    said = capsys.readouterr()
    assert said.out == plain and "not compiled: no C++ compiler was found" in said.err
    assert asked[1] == {"disable": True}
