"""Run folders: nothing is half written, a damaged checkpoint is recognised and survived, and a folder belongs to one run."""

import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configurable import TrainSettings, UserError, read_json
from model import GPT
from runs import checkpoint
from runs.checkpoint import checkpoint_paths, load_run, load_state, load_weights, save_checkpoint
from runs.files import replace_file, sha256, write_json, write_text
from runs.folder import ROOT, lock_folder, provenance, run_folder, take_folder
from runs.log import append_metrics, trim_metrics

SMALL = TrainSettings(block_size=16, n_layer=1, n_head=2, n_embd=16)


def state(step: int) -> dict:
    """A checkpoint that tells which one it is."""
    return {
        "step": step,
        "tokens": 64 * step,
        "model": {"w": torch.arange(1000.0) + step},
        "optimizer": {},
        "scaler": {},
        "gpt": {},
        "settings": {"max_iters": 1200},
        "original_length": 16,
        "train_lengths": [16, 32],
    }


def newest(folder: Path) -> Path:
    """The newest checkpoint."""
    return checkpoint_paths(folder)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with two checkpoints, of steps 1 and 2."""
    path = tmp_path / "run"
    path.mkdir()
    for step in (1, 2):
        save_checkpoint(path, state(step))
    return path


def step_of(folder: Path) -> int:
    """The step that a run in this folder would go on from; fails if that checkpoint is not as it was made."""
    found = load_state(folder, say=lambda line: None)
    assert torch.equal(found["model"]["w"], state(found["step"])["model"]["w"])
    return found["step"]


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file in a folder."""
    return {path.name: sha256(path) for path in folder.iterdir() if path.is_file()}


# ---- files


def test_a_file_that_cannot_be_written_leaves_the_one_before_and_nothing_else(
    tmp_path: Path,
) -> None:
    def fail(file) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_text(tmp_path / "a.txt", "before")
    with pytest.raises(
        UserError,
        match=r"a\.txt cannot be written \(No space left on device\); what was there before is untouched",
    ):
        replace_file(tmp_path / "a.txt", fail)
    assert contents(tmp_path) == {"a.txt": hashlib.sha256(b"before").hexdigest()}


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    def write(file) -> None:
        file.write(b"ne")
        file.flush()
        assert (tmp_path / "a.txt").read_bytes() == b"before"
        file.write(b"w")

    write_text(tmp_path / "a.txt", "before")
    assert replace_file(tmp_path / "a.txt", write) == hashlib.sha256(b"new").hexdigest()
    assert contents(tmp_path) == {"a.txt": hashlib.sha256(b"new").hexdigest()}


def test_json_is_read_back_and_never_holds_what_json_has_not(tmp_path: Path) -> None:
    content = {
        "text": 'é日 | "x"',
        "number": 1e-300,
        "list": [1, None, True],
        "empty": {},
        "numbers": [1, -2.5e-7, 3],
        "of lists": [[1, 2], []],
        "no list": "--start=[1,  2]",
        "command": ["[ ]", "[\n]"],
    }
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert read_json(tmp_path / "a.json") == content


@pytest.mark.parametrize("text", [None, "", "{", '{"a": 1', "[1]", "\x00\x00"])
def test_a_json_file_that_is_missing_or_broken_is_a_sentence(
    text: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


# ---- saving


def test_a_checkpoint_comes_back_as_it_was_and_loads_with_weights_only(folder: Path) -> None:
    found = load_state(folder)
    assert found.pop("sha256") == sha256(newest(folder))
    assert torch.equal(found["model"].pop("w"), torch.arange(1000.0) + 2)
    assert found == state(2) | {"model": {}}
    states = [torch.load(path, weights_only=True) for path in checkpoint_paths(folder)]
    assert [state["step"] for state in states] == [2, 1]


class Code:
    """What a pickle may hold: a call that happens when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_code_in_a_checkpoint_is_not_run(folder: Path) -> None:
    save_checkpoint(folder, state(3) | {"settings": Code(folder / "run by loading")})
    with pytest.raises(UserError, match="no checkpoint of this program"):
        load_state(folder)
    assert not (folder / "run by loading").exists()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"step": "3"}, "step"),
        ({"gpt": None}, "gpt"),
        ({"train_lengths": [16, "a"]}, r"train_lengths\[1\]"),
    ],
)
def test_a_checkpoint_that_lacks_something_is_a_sentence(
    wrong: dict, named: str, folder: Path
) -> None:
    save_checkpoint(folder, state(3) | {"step": 3} | wrong)
    with pytest.raises(UserError, match=rf"ckpt-3-.* lacks a proper {named}: it is damaged"):
        load_state(folder)


def test_a_folder_without_checkpoints_gives_none(tmp_path: Path) -> None:
    assert load_state(tmp_path) is None and load_state(tmp_path / "absent") is None


def test_a_save_leaves_two_checkpoints_named_by_their_digests_and_nothing_else(
    folder: Path,
) -> None:
    for step in (3, 9, 10, 11):  # 10 is after 9, as numbers and not as words
        save_checkpoint(folder, state(step))
        name = f"ckpt-{step}-{sha256(newest(folder))[:16]}.pt"
        assert newest(folder).name == name and len(contents(folder)) == 2
        assert step_of(folder) == step
    newest(folder).unlink()
    assert step_of(folder) == 10


def test_a_disk_that_is_full_leaves_both_checkpoints(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed")
    for error in (writer, OSError(28, "No space left on device")):

        def fail(content: object, file, error=error) -> None:
            file.write(b"half a checkpoint")
            raise error

        before = contents(folder)
        monkeypatch.setattr(torch, "save", fail)
        with pytest.raises(
            UserError, match=r"^a checkpoint in .*run cannot be written .*untouched"
        ) as said:
            save_checkpoint(folder, state(3))
        assert contents(folder) == before and ".new" not in str(said.value)


# ---- damage


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def swapped(path: Path) -> None:
    """With another run's, as whole as this one."""
    other = path.parent.parent / "other"
    other.mkdir(exist_ok=True)
    save_checkpoint(other, state(7))
    shutil.copy(newest(other), path)


DAMAGES = pytest.mark.parametrize(
    "damage", [truncated, flipped, emptied, swapped], ids=lambda f: f.__name__
)


def test_the_checkpoint_before_the_decay_is_kept_beside_the_two_newest(folder: Path) -> None:
    digest = save_checkpoint(folder, state(3), "stable")
    assert newest(folder).name == f"stable-3-{digest[:16]}.pt" and step_of(folder) == 3
    for step in (4, 5, 6):
        save_checkpoint(folder, state(step))
    assert [path.stem[:-17] for path in checkpoint_paths(folder)] == [
        "ckpt-6",
        "ckpt-5",
        "stable-3",
    ]
    assert load_state(folder, last=4)["sha256"] == digest and load_state(folder, last=2) is None
    save_checkpoint(folder, state(7), "stable")  # that of a longer run replaces it
    kept = [path.stem[:-17] for path in checkpoint_paths(folder)]
    assert kept == ["stable-7", "ckpt-6", "ckpt-5"]


@DAMAGES
def test_a_damaged_checkpoint_is_named_the_one_before_is_used_and_kept(
    damage: Callable[[Path], None], folder: Path
) -> None:
    """Going on from the previous one, the next save must not push that one, the only good one, out."""
    path, previous = checkpoint_paths(folder)
    damage(path)
    said: list[str] = []
    assert load_state(folder, said.append)["step"] == 1
    assert len(said) == 1 and said[0].startswith(f"{path} is damaged or renamed: ")
    assert said[0].endswith(f"going on from {previous.name}")
    save_checkpoint(folder, state(3))
    assert not path.exists() and previous.exists()
    newest(folder).unlink()
    assert step_of(folder) == 1


@DAMAGES
def test_two_damaged_checkpoints_are_one_sentence(
    damage: Callable[[Path], None], folder: Path
) -> None:
    paths = checkpoint_paths(folder)
    for path in paths:
        damage(path)
    with pytest.raises(UserError) as refused:
        load_state(folder)
    text = str(refused.value)
    assert all(str(path) in text for path in paths) and "\n" not in text
    assert "--overwrite=True" in text
    paths[0].unlink()
    with pytest.raises(UserError, match="damaged"):  # and not a run from the start
        load_state(folder)


def test_a_checkpoint_under_another_name_is_told_and_not_used(folder: Path) -> None:
    second, first = checkpoint_paths(folder)
    second.rename(folder / "kept")
    first.rename(second)
    (folder / "kept").rename(first)
    with pytest.raises(UserError, match=f"{second.name} is damaged or renamed and .*{first.name}"):
        load_state(folder)


@pytest.mark.parametrize("saved", [(3,), (3, 4)])
def test_a_checkpoint_saved_while_another_program_looks_is_no_damage(
    saved: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sample.py lists the checkpoints, then a training saves: those that were listed are gone."""
    calls = []

    def slow(where: Path, last: int | None = None) -> list[Path]:
        found = checkpoint_paths(where, last)
        calls.append(where)
        if len(calls) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint, "checkpoint_paths", checkpoint_paths)
                for step in saved:
                    save_checkpoint(folder, state(step))
        return found

    monkeypatch.setattr(checkpoint, "checkpoint_paths", slow)
    said: list[str] = []
    assert load_state(folder, said.append)["step"] in (2, *saved) and said == []


def test_checkpoints_that_a_training_deletes_while_they_are_listed_are_not_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save_checkpoint(folder, state(step))
    listed = Path.glob

    def slow(self: Path, pattern: str) -> list[Path]:
        paths = list(listed(self, pattern))
        monkeypatch.undo()
        for step in (3, 4):
            save_checkpoint(folder, state(step))
        return paths

    monkeypatch.setattr(Path, "glob", slow)
    assert load_state(folder)["step"] == 4


def test_a_checkpoint_that_is_a_link_to_nowhere_is_an_error_of_the_system(folder: Path) -> None:
    (folder / f"ckpt-3-{'0' * 16}.pt").symlink_to("absent")
    with pytest.raises(FileNotFoundError, match="ckpt-3"):
        load_state(folder)


def test_a_folder_is_read_while_a_training_saves_as_fast_as_it_can(folder: Path) -> None:
    """Whatever it deletes in between, a reader finds the newest and says nothing of damage."""
    ended, said, seen = threading.Event(), [], [0]

    def training() -> None:
        for step in itertools.count(3):
            save_checkpoint(folder, state(step))
            if ended.is_set():
                return

    saving = threading.Thread(target=training)
    saving.start()
    try:
        while seen[-1] < 100:
            seen.append(load_state(folder, said.append)["step"])
    finally:
        ended.set()
        saving.join()
    assert said == [] and seen == sorted(seen) and len(set(seen)) > 10


# ---- dying while saving


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


@contextmanager
def dying_at(change: int, how: str) -> Iterator[list[int]]:
    """Let the n-th renaming or deletion fail: `refused` by the system, or the process `killed` before it.

    A process that is killed tidies nothing up.
    """
    calls: list[int] = []
    rename, unlink = os.replace, Path.unlink

    def counted() -> None:
        calls.append(len(calls) + 1)
        if len(calls) == change:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM)) if how == "refused" else Killed

    def replaced(source: Path, target: Path) -> None:
        counted()
        rename(source, target)

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        if not missing_ok:
            counted()
        if how == "refused" or len(calls) < change:
            unlink(path, missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replaced)
        patch.setattr(Path, "unlink", unlinked)
        yield calls


@pytest.mark.parametrize("how", ["refused", "killed"])
@pytest.mark.parametrize("place", [1, 2, 3])  # two renamings and the deletion of the oldest
def test_dying_at_any_change_of_a_save_leaves_a_good_checkpoint(
    how: str, place: int, folder: Path
) -> None:
    with dying_at(0, how) as calls:
        save_checkpoint(folder, state(3))
    assert len(calls) == 3
    with dying_at(place, how), pytest.raises(UserError if how == "refused" else Killed) as ended:
        save_checkpoint(folder, state(4))
    assert how == "killed" or "cannot be written" in str(ended.value)
    assert step_of(folder) == (4 if place == 3 else 3)
    for step in range(5, 8):  # and again and again
        with dying_at(place, how), suppress(UserError, Killed):
            save_checkpoint(folder, state(step))
        assert step_of(folder) in (3, 4, step)
    lock_folder(folder).release()  # sweeps
    save_checkpoint(folder, state(8))
    assert step_of(folder) == 8 and len(checkpoint_paths(folder)) == 2
    flipped(newest(folder))
    assert step_of(folder) in (3, 4, 7)


@pytest.mark.parametrize("how", ["refused", "killed"])
def test_dying_at_the_first_save_leaves_no_half_checkpoint(how: str, tmp_path: Path) -> None:
    for place in (1, 2):
        copy = tmp_path / f"{place}"
        copy.mkdir()
        with dying_at(place, how), suppress(UserError, Killed):
            save_checkpoint(copy, state(1))
        assert load_state(copy) is None
        save_checkpoint(copy, state(2))
        assert step_of(copy) == 2


@pytest.mark.parametrize("how", ["refused", "killed"])
def test_dying_after_a_damaged_checkpoint_leaves_a_good_one(how: str, folder: Path) -> None:
    for place in (1, 2, 3):
        copy = folder.with_name(f"died-{place}")
        shutil.copytree(folder, copy)
        flipped(newest(copy))
        with dying_at(place, how), suppress(UserError, Killed):
            save_checkpoint(copy, state(3))
        assert step_of(copy) == (3 if place == 3 else 1)


# ---- metrics


def lines_of(folder: Path) -> list[dict]:
    return [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def test_metrics_after_the_step_are_dropped(tmp_path: Path) -> None:
    for step in range(1, 6):
        append_metrics(tmp_path, {"step": step, "loss": 1 / step})
    assert trim_metrics(tmp_path, 3) == 5 and trim_metrics(tmp_path, 3) == 0
    assert lines_of(tmp_path) == [{"step": step, "loss": 1 / step} for step in (1, 2, 3)]
    append_metrics(tmp_path, {"step": 4, "loss": 0.5})
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "half", ['{"st', '{"step": 3, "loss": 1.', '{"step"', "{", "\0\0\0\0", "3", '{"step": 3}'[:-1]]
)
def test_what_a_killed_run_left_half_written_is_dropped(half: str, tmp_path: Path) -> None:
    for step in (1, 2):
        append_metrics(tmp_path, {"step": step})
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(half)
    trim_metrics(tmp_path, 5)
    assert lines_of(tmp_path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("broken", [b"\xff\xfe\x00", b'{"step": 1, "lo', b"[]", b'{"loss": 1}'])
def test_a_broken_line_costs_only_itself(broken: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + broken + b'\n{"step": 2}\n')
    trim_metrics(tmp_path, 5)
    assert lines_of(tmp_path) == [{"step": 1}, {"step": 2}]


def test_a_last_line_that_lacks_only_its_newline_does_not_join_the_next(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}', encoding="utf-8")
    trim_metrics(tmp_path, 2)
    append_metrics(tmp_path, {"step": 3})
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3]


def test_a_run_that_starts_has_empty_metrics(tmp_path: Path) -> None:
    trim_metrics(tmp_path, 0)
    assert lines_of(tmp_path) == []


# ---- names of folders


def test_the_default_folder_is_named_after_scheme_corpus_length_and_seed() -> None:
    assert run_folder(TrainSettings(pos="alibi")).as_posix() == "out/alibi-stdlib-L128-s1337"
    assert run_folder(replace(SMALL, out_dir="here/there")) == Path("here/there")
    named = TrainSettings(pos="t5", dataset="books", block_size=64, seed=3)
    assert run_folder(named).as_posix() == "out/t5-books-L64-s3"


@pytest.mark.parametrize(
    ("changed", "spelled"),
    [
        ({"n_embd": 128}, "n_embd=128"),
        ({"min_lr": 1e-5, "learning_rate": 1e-3}, "learning_rate=0.001-min_lr=1e-05"),
        ({"mixed_lengths": (64, 128), "bias": True}, "bias=True-mixed_lengths=64_128"),
        ({"extend": "yarn(factor=4) + pose(target=512)"}, "extend=yarn_factor=4_+pose_target=512_"),
        ({"warmup_iters": 10}, "warmup_iters=10"),
        ({"pos_file": "a.py"}, "pos_file=a.py"),
        ({"pos_file": "x/a.py"}, "[0-9a-f]{10}"),  # which cannot be spelled in a name
        (
            {
                "beta1": 0.91,
                "beta2": 0.98,
                "grad_clip": 0.75,
                "min_lr": 1e-4,
                "dropout": 0.25,
                "n_embd": 128,
                "weight_decay": 0.2,
            },
            "[0-9a-f]{10}",
        ),
    ],
)
def test_the_folder_tells_the_settings_that_differ_from_the_defaults(
    changed: dict, spelled: str
) -> None:
    name = run_folder(TrainSettings(pos="alibi", seed=100, **changed)).name
    spelled = spelled.replace("+", r"\+")
    assert re.fullmatch(f"alibi-stdlib-L128-s100-{spelled}", name) and len(name) <= 100


def test_the_folder_of_a_run_with_the_weights_of_another_is_named_after_that_one() -> None:
    """Its scheme is not known yet, and the other run may be gone when it is resumed."""
    name = run_folder(TrainSettings(init_from="out/alibi-stdlib-L128-s1", block_size=512)).name
    assert re.fullmatch("alibi-stdlib-L128-s1-stdlib-L512-s1337-[0-9a-f]{10}", name)
    other = run_folder(TrainSettings(init_from="other/alibi-stdlib-L128-s1", block_size=512)).name
    assert other != name
    assert (
        run_folder(TrainSettings(init_from="gpt2")).name == "gpt2-stdlib-L128-s1337-init_from=gpt2"
    )


SPELLED = {  # values of settings that a careless spelling would give one name
    "pos": (
        "a",
        "a(b=c)",
        "a(b='c')",
        "a(b='c d')",
        "a(b='cd')",
        "a + b",
        "a | b",
        "a-b",
        "é" * 99,
    ),
    "pos_file": ("", "a.py", "a b.py", "ab.py", "a/b.py", "a-b.py", "a(b.py", "a_b.py", "x" * 99)
    + ("a.py-extend=ntk", "a.py-learning_rate=1e-05"),
    "extend": ("", "ntk"),
    "dataset": ("stdlib", "std lib", "std-lib", "std/lib"),
    "mixed_lengths": ((), (16, 64), (1664,)),
    "learning_rate": (3e-3, 1e-5, 0.30000000000000004),
    "n_embd": (256, 128),
}


@given(*[st.fixed_dictionaries({k: st.sampled_from(v) for k, v in SPELLED.items()})] * 2)
def test_two_different_runs_never_share_a_name(first: dict, second: dict) -> None:
    names = [run_folder(TrainSettings(**values)).name for values in (first, second)]
    assert (first == second) == (names[0] == names[1])
    assert all(re.fullmatch(r"[A-Za-z0-9._=+~-]{1,100}", name) for name in names)


@pytest.mark.parametrize(
    "changed",
    [
        {"eval_lengths": (64, 128)},
        {"compile": False},
        {"wandb_log": True},
        {"device": "cpu"},
        {"max_iters": 5},  # a run may be made longer
        {"examine": False},
    ],
)
def test_how_it_runs_and_is_tested_does_not_change_the_folder(changed: dict) -> None:
    assert run_folder(TrainSettings(**changed)) == run_folder(TrainSettings())


def test_names_of_schemes_are_safe_and_short_and_different() -> None:
    schemes = [
        "rope + alibi",
        "rope | alibi",
        "rope(base=500000, fraction=0.25)",
        "rope(base=50000, fraction=0.25)",
        "randomized(max=4096) + (rope | nope)",
        "randomized(max=4096) + rope",
        " + ".join(["window(size=100)"] * 9),
        " + ".join(["window(size=100)"] * 10),
        "kerple(kind='log') | rope(layout='half')",
        "alibi | (rope + logn) | nope",
    ]
    names = [run_folder(TrainSettings(pos=pos)).name for pos in schemes]
    assert len(set(names)) == len(schemes)
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9._=+~-]+", name) and not name.startswith((".", "-")), name
        assert len(name) <= 100


def test_schemes_that_differ_in_their_parentheses_only_have_different_folders() -> None:
    first, second = (
        run_folder(TrainSettings(pos=pos))
        for pos in ("alibi + (rope | nope) + logn", "alibi + (rope | nope + logn)")
    )
    assert first != second


# ---- whose folder it is


def config_of(settings: TrainSettings) -> dict:
    """What train.py writes into config.json, with invented digests."""
    return provenance() | {
        "settings": asdict(settings.warmed_up(settings.max_iters)),
        "history": [{"from_step": 0, "max_iters": settings.max_iters}],
        "read_before": {},
        "vocab_size": 256,
        "unit": "byte",
        "parameters": 1,
        "layers": "",
        "original_length": settings.block_size,
        "train_lengths": [settings.block_size],
        "attention": {},
        "extension_files_sha256": {},
        "pos_file_sha256": None,
        "corpus_sha256": {"train": "", "val": ""},
        "wandb_id": "",
        "device": "cpu",
        "dtype": "float32",
        "processes": 1,
    }


def claimed(folder: Path, settings: TrainSettings) -> Path:
    """A folder that holds a run of these settings."""
    take_folder(folder, settings).release()
    write_json(folder / "config.json", config_of(settings))
    return folder


def test_a_folder_is_made_and_known_again(tmp_path: Path) -> None:
    folder = claimed(tmp_path / "a" / "b", SMALL)
    for same in (SMALL, replace(SMALL, compile=False, device="cpu", eval_lengths=(16, 64))):
        assert take_folder(folder, same).is_locked
    assert "config.json" in contents(folder)


def test_a_folder_of_another_run_is_refused_with_every_difference_and_left_alone(
    tmp_path: Path,
) -> None:
    folder = claimed(tmp_path / "run", SMALL)
    save_checkpoint(folder, state(1))
    before = contents(folder)
    with pytest.raises(UserError) as refused:
        take_folder(folder, replace(SMALL, n_embd=32, seed=3, pos="alibi", compile=False))
    text = str(refused.value)
    for sentence in (
        "n_embd: 32 here, 16 there",
        "seed: 3 here, 1337 there",
        "pos: 'alibi' here, 'rope' there",
    ):
        assert sentence in text
    assert (
        "compile" not in text
        and str(folder) in text
        and "--overwrite=True" in text
        and "\n" not in text
    )
    assert contents(folder) == before


def test_overwrite_takes_a_folder_and_leaves_nothing_of_the_run_before(tmp_path: Path) -> None:
    folder = claimed(tmp_path / "run", SMALL)
    save_checkpoint(folder, state(1))
    save_checkpoint(folder, state(2))
    save_checkpoint(folder, state(1), "stable")
    append_metrics(folder, {"step": 1})
    for name in ("extrapolation.json", "extrapolation.png", ".ckpt.new"):
        (folder / name).write_text("{}", encoding="utf-8")
    take_folder(folder, replace(SMALL, seed=3, overwrite=True))
    assert contents(folder).keys() == {".lock", ".holder"} and load_state(folder) is None


def test_a_folder_of_the_same_run_may_have_another_length_but_no_other_warm_up(
    tmp_path: Path,
) -> None:
    folder = claimed(tmp_path / "run", replace(SMALL, max_iters=40))
    take_folder(folder, replace(SMALL, max_iters=400))  # its own warm-up of 10 steps stays
    take_folder(folder, replace(SMALL, max_iters=400, warmup_iters=10))
    with pytest.raises(UserError, match=r"\(warmup_iters: 100 here, 10 there\)"):
        take_folder(folder, replace(SMALL, max_iters=400, warmup_iters=100))


def test_what_a_killed_process_had_half_written_is_cleared_away(tmp_path: Path) -> None:
    folder = claimed(tmp_path / "run", SMALL)
    for name in ("..ckpt.new.4711.new", ".ckpt.new", ".config.json.4711.new"):
        (folder / name).write_bytes(b"half")
    take_folder(folder, SMALL)
    assert contents(folder).keys() == {".lock", ".holder", "config.json"}


def test_overwrite_leaves_files_that_no_run_made(tmp_path: Path) -> None:
    folder = claimed(tmp_path / "run", SMALL)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    take_folder(folder, replace(SMALL, overwrite=True))
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_overwrite_leaves_a_folder_alone_that_holds_no_run(tmp_path: Path) -> None:
    for name in ("pos_file.py", "ckpt-best.pt", "metrics.jsonl"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    take_folder(tmp_path, replace(SMALL, overwrite=True))
    assert {"pos_file.py", "ckpt-best.pt", "metrics.jsonl"} <= contents(tmp_path).keys()


def test_a_setting_that_an_older_run_did_not_know_has_its_default(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    config = config_of(SMALL)
    del config["settings"]["dropout"]
    write_json(folder / "config.json", config)
    take_folder(folder, SMALL)
    with pytest.raises(UserError, match="dropout"):
        take_folder(folder, replace(SMALL, dropout=0.1))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"settings": None}, "lacks a proper settings"),
        ({"corpus_sha256": {"train": ""}}, r"lacks a proper corpus_sha256\.val"),
        ({"settings": {"n_embd": "wide"}}, "has settings that cannot be .n_embd is 'wide'"),
        ({"settings": {"unheard": 1}}, "has settings that cannot be .*unheard"),
    ],
)
def test_a_config_that_is_not_whole_is_a_sentence(wrong: dict, named: str, tmp_path: Path) -> None:
    folder = claimed(tmp_path / "run", SMALL)
    write_json(folder / "config.json", config_of(SMALL) | wrong)
    for use in (load_run, lambda folder: take_folder(folder, SMALL)):
        with pytest.raises(UserError, match=rf"config\.json {named}.*: it is damaged"):
            use(folder)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UserError, match=r"file.run cannot be used \(Not a directory\); choose another --out_dir"
    ):
        take_folder(tmp_path / "file" / "run", SMALL)


# ---- loading a run


@pytest.fixture
def untrained(tmp_path: Path) -> Path:
    """The run folder of an untrained model."""
    folder = claimed(tmp_path / "run", SMALL)
    torch.manual_seed(1)
    model = GPT(SMALL.gpt(256))
    save_checkpoint(
        folder,
        state(5)
        | {
            "gpt": asdict(model.config),
            "model": model.state_dict(),
            "settings": config_of(SMALL)["settings"],
        },
    )
    return folder


def test_a_run_is_loaded_with_its_weights_ready_to_be_used(untrained: Path) -> None:
    run = load_run(untrained)
    torch.manual_seed(1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(run.model.parameters(), GPT(SMALL.gpt(256)).parameters(), strict=True)
    )
    assert not run.model.training and run.folder == untrained
    assert run.settings.n_embd == 16 and run.state["step"] == 5


def test_a_folder_that_is_no_run_or_has_no_checkpoint_yet_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name a run folder"):
        load_run(tmp_path / "absent")
    with pytest.raises(UserError, match="no checkpoint yet"):
        load_run(claimed(tmp_path / "new", SMALL))


def test_weights_of_another_model_or_scheme_are_refused_with_what_differs(untrained: Path) -> None:
    weights = load_state(untrained)["model"]
    for other, named in (
        (replace(SMALL, n_embd=32), "size mismatch for wte.weight: "),
        (
            replace(SMALL, pos="learned"),
            'Missing key(s) in state_dict: "pos.pieces.0_learned.table"',
        ),
        (replace(SMALL, n_layer=2), 'Missing key(s) in state_dict: "h.1.'),
    ):
        with pytest.raises(UserError) as refused:
            load_weights(GPT(other.gpt(256)), weights, untrained)
        assert (
            named in str(refused.value)
            and str(untrained) in str(refused.value)
            and len(str(refused.value)) < 600
        )


def test_the_sources_of_the_numbers_are_recorded_and_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["somewhere/train.py", "config/alibi.py", "--seed=3"])
    found = provenance()
    assert found["command"] == ["train.py", "config/alibi.py", "--seed=3"]
    assert {
        "train.py",
        "model.py",
        "attention.py",
        "posenc.py",
        "zoo/kerple.py",
        "positions/scheme.py",
        "runs/start.py",
        "data/__init__.py",
    } <= {*found["sources_sha256"]}
    for drawing in ("report.py", "runs/figures.py"):  # a figure drawn otherwise is no other result
        assert drawing not in found["sources_sha256"]
    model = (ROOT / "model.py").read_bytes()
    assert found["sources_sha256"]["model.py"] == hashlib.sha256(model).hexdigest()
    assert (
        found["threads"] == torch.get_num_threads()
        and found["versions"]["torch"] == torch.__version__
    )
