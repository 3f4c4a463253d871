"""A run's folder: its name, its lock, its config.json, and what differs from what is asked for."""

import contextlib
import difflib
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from common.device import Compute
from common.errors import UserError
from common.files import read_json, sha256, write_json
from configurable import RESULT, TrainSettings, setting_values, to_argv
from data.batches import padding, tested_sizes
from data.corpus import Corpus, load_corpus
from measure import protocols
from model import GPT
from run.checkpoint import RESTORE, checkpoint_paths, load_checkpoint, step_of
from run.huggingface import is_huggingface
from scheme import OWN_FILE, ROOT, Scheme, is_builtin, parse, scheme_digests, scheme_files
from tables.records import Result, load_result

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
# what trains a model, beside the files that define its schemes
CODE = ("attention.py", "data/batches.py", "model.py", "optimizer.py", "scheme.py", "train.py")
LOCKS: list[FileLock] = []  # held until the process ends: a lock without a reference is released
# settings that have a place of their own in the folder's name, or do not belong there
NOT_IN_DIGEST = ("--pos=", "--dataset=", "--block_size=", "--seed=", "--max_iters=", "--pos_file=")


class SavedSettings(TrainSettings):
    """The settings of a run that exists, even if today they would be refused together."""

    def check_together(self) -> None:
        pass


# ---- the folder: its name and its lock


def run_folder(s: TrainSettings) -> Path:
    """out_dir; by default out/<pos>-<dataset>-L<block_size>-s<seed>.

    Six digits of a digest are appended if other settings that change the result differ from the
    defaults, or if the scheme cannot be written in a file name. max_iters does not count, because
    it may be raised, and neither does the name of pos_file.
    """
    if s.out_dir:
        return Path(s.out_dir).expanduser()
    others = [word for word in to_argv(s, *RESULT) if not word.startswith(NOT_IN_DIGEST)]
    pos = s.pos.replace(" ", "")
    safe = re.sub(r"[^A-Za-z0-9.=+]+", "_", pos).strip("_")[:60]
    name = f"{safe}-{s.dataset}-L{s.block_size}-s{s.seed}"
    if others or safe != pos:
        digest = hashlib.sha256(" ".join([pos, *others]).encode()).hexdigest()
        name += f"-{digest[:6]}"
    return Path("out", name)


def lock_folder(folder: Path, wait: int = 1) -> bool:
    """Lock a folder, which is made if necessary, against other programs until this process ends.

    A process may lock a folder more than once. Returns whether it had to wait for another program,
    which may have written there. UserError if that has not ended after `wait` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", is_singleton=True)
    with contextlib.suppress(Timeout):
        lock.acquire(blocking=False)
    waits = not lock.is_locked
    if waits:
        in_use = f"{folder} is in use by another program"
        print(f"{in_use}: waiting for its end, at most {wait} s", flush=True)
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            raise UserError(
                f"{in_use}; wait until it ends (sample.py may read it, and --test_at=STEP of "
                "train.py tests on the way)"
            ) from None
    LOCKS.append(lock)
    for path in folder.glob(".*.new"):  # half written by a process that was killed
        path.unlink()
    return waits


def named_folders(typed: list[str]) -> list[str]:
    """The run folders among command-line arguments, each once; UserError if there are none.

    Files are left out, because a shell expands out/* to them too.
    """
    folders = dict.fromkeys(str(Path(word)) for word in typed if not Path(word).is_file())
    if not folders:
        raise UserError("no run folder is named: add one, such as out/alibi-stdlib-L128-s1337")
    return list(folders)


# ---- config.json


def provenance() -> dict:
    """What is needed to repeat a run: command, commit, versions, threads, and digests of CODE."""
    commit = ""
    with contextlib.suppress(OSError):  # git may be absent
        git = "git describe --always --abbrev=40 --dirty --exclude=*".split()
        commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {
        "command": sys.argv,
        "git_commit": commit,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "code_sha256": {name: sha256(ROOT / name) for name in CODE},
    }


def read_config(folder: str | Path) -> dict:
    """Read config.json of a run folder; UserError if it is missing or damaged."""
    path = Path(folder, "config.json")
    if not path.exists():
        runs = [file.parent.name for file in Path("out").glob("*/config.json")]
        near = difflib.get_close_matches(Path(folder).name, runs, 1)
        advice = f"did you mean out/{near[0]}?" if near else "name a run folder, as out/RUN"
        if any(Path(folder).glob("ckpt-*")):
            advice = "bring it back, or delete the folder"
        if str(folder) == "resume":  # nanoGPT's word
            advice = "to resume a run, leave init_from out: the same command resumes it"
        raise UserError(f"{path} is missing: {advice}")
    if is_huggingface(str(folder)):
        raise UserError(f"{path} is that of a Hugging Face model: name a run here")
    try:
        config = read_json(path)
        config["settings"] = asdict(SavedSettings(**config["settings"]))
    except TypeError:  # a setting that no longer exists
        raise made_by_another_version(folder, config) from None
    except (KeyError, UserError) as error:
        raise UserError(f"{path} is damaged ({error}): {RESTORE}") from None
    return config


def made_by_another_version(folder: str | Path, config: dict) -> UserError:
    """What is wrong with a run folder whose weights another version of this program trained."""
    made_by = config.get("version", "0.2.0 or earlier")
    commit = (config.get("git_commit") or "").removesuffix("-dirty")
    checkout = "check out that version"
    if commit:
        short = commit[:7]
        checkout = f"use it there: git worktree add ../longshot-{short} {short}"
    this = "this is another commit" if made_by == VERSION else f"this is version {VERSION}"
    return UserError(
        f"{folder} was made by version {made_by} of this program, and {this}: "
        f"train it again with --overwrite=True, or {checkout}"
    )


def kept_settings(s: TrainSettings) -> dict:
    """The settings that change a result, except those that may differ when a run goes on."""
    values = setting_values(s, *RESULT)
    del values["max_iters"], values["pos_file"]
    return values


def corpus_digests(corpus: Corpus) -> dict:
    """{split: SHA-256} of both splits."""
    return {split: corpus.split_sha256(split) for split in ("train", "val")}


def new_config(
    s: TrainSettings,
    model: GPT,
    compute: Compute,
    corpus: Corpus,
    train_lengths: list[int],
    processes: int,
) -> dict:
    """The content of config.json of a new run, whose weights see these lengths in training."""
    return provenance() | {
        "version": VERSION,
        "train_lengths": train_lengths,
        "settings": asdict(s),
        "device": compute.name,
        "dtype": compute.dtype_name,
        "processes": processes,
        "files_sha256": scheme_digests(model.pos),
        "corpus_sha256": corpus_digests(corpus),
        "padding": padding(corpus, s.block_size) if s.documents == "pad" else 0.0,
        "parameters": model.parameter_count,
        "run_id": uuid.uuid4().hex,
    }


def has_every_test(result: Result, corpus: Corpus, s: TrainSettings) -> bool:
    """Whether a result has what the settings of its run ask for: a test after the last step, by
    every protocol of its corpus at every length, on as many windows.
    """
    windows = {}  # of the newest record of each protocol and length, which tables show
    for record in result.records:
        if (record.step, record.dataset, record.extend) == (s.max_iters, s.dataset, s.extend):
            windows[record.protocol, record.length] = record.windows
    if corpus.has_sizes:
        sizes = {size for size, _, _ in tested_sizes(corpus, s.eval_lengths)}
        return sizes <= {length for _, length in windows}
    asked = protocols.of_text()
    if corpus.has_questions:
        asked = [protocols.find_protocol("recall")]
    for protocol in asked:
        for length in protocols.tested_lengths(s.block_size, s.eval_lengths):
            found = windows.get((protocol.name, length))
            if found is None or (protocol.in_places and found != s.eval_windows):
                return False
    return True


# ---- what is in a folder


def named_files(s: TrainSettings) -> dict[str, Path]:
    """The files that options of its expressions name, if they are still there: {name of the copy in
    a run folder: path}.
    """
    found = {}
    for text in filter(None, (s.pos, s.extend)):
        for mention in parse(text).mentions:
            for value in mention.options.values():
                if isinstance(value, str) and Path(value).is_file():
                    found[f"files/{Path(value).name}"] = Path(value)
    return found


@dataclass
class RunFolder:
    """A run folder, and the settings that ask for its run: None where the run is only read.

    Of a fine-tune, `source_sha256` is the digest of the weights that it would start from now, and
    `inherits_files` says that files which options name are copied from there.

    Each file is read when it is first asked for, and once. UserError if it is damaged.
    """

    path: Path
    settings: TrainSettings | None = None
    source_sha256: str = ""
    inherits_files: bool = False

    @classmethod
    def open(cls, s: TrainSettings, source: Any = None) -> "RunFolder":
        """The folder of the run of these settings, which need not exist; a fine-tune starts from
        the Run `source`.
        """
        if source is None:
            return cls(run_folder(s), s)
        return cls(run_folder(s), s, source.digest, s.extend == source.settings.extend)

    @cached_property
    def is_new(self) -> bool:
        """Whether training starts from nothing here: no run is here, or it is to be overwritten."""
        if self.settings and self.settings.overwrite:
            return True
        files = [*self.path.glob("config.json"), *self.path.glob("extrapolation.json")]
        return not (files or checkpoint_paths(self.path))

    @cached_property
    def config(self) -> dict:
        """The content of config.json. UserError if another version of this program wrote it."""
        config = read_config(self.path)
        if config.get("version") != VERSION:
            raise made_by_another_version(self.path, config)
        return config

    def check(self) -> None:
        """Raise UserError for a config.json or a result that is damaged or of another version."""
        if self.config and (self.path / "extrapolation.json").exists():
            load_result(self.path)

    @property
    def step(self) -> int:
        """The number of steps taken before the newest checkpoint; its content is not read."""
        paths = checkpoint_paths(self.path)
        return step_of(paths[0]) if paths else 0

    def kept_dtype(self, asked: str) -> str:
        """The dtype to compute with: a run keeps its own, unless another one is asked for."""
        if asked == "auto" and not self.is_new:
            return self.config["dtype"]
        return asked

    def changed_files(self, pos_file: str) -> list[str]:
        """A sentence for each file of the run's schemes that has changed since the run began.

        Of the user's own files the copies in the folder are read, or, if `pos_file` is typed again,
        that file and the modules beside it, and, of a run to train, what its options name.
        """
        changed = []
        typed = {}
        if self.settings and not self.inherits_files:
            typed = named_files(self.settings)
        for name, digest in self.config["files_sha256"].items():
            path = self.path / name
            if is_builtin(name):
                path = ROOT / name
            elif pos_file and name == OWN_FILE:
                path = Path(pos_file)
            elif pos_file and path.suffix == ".py":
                path = Path(pos_file).parent / name
            elif name in typed:
                path = typed[name]
            if not path.is_file() or sha256(path) != digest:
                changed.append(f"{path}, which defines its scheme, has changed since")
        return changed

    def changed_code(self) -> list[str]:
        """The files of CODE that have changed since the run began; of older runs it is not known.

        They may have changed in a way that changes no number: a run may go on, with a note.
        """
        digests = self.config.get("code_sha256", {})
        changed = []
        for name, digest in digests.items():
            if not (ROOT / name).is_file() or sha256(ROOT / name) != digest:
                changed.append(name)
        return changed

    @cached_property
    def differences(self) -> list[str]:
        """How its run differs from that of the settings, as in "seed: 1 in the folder, 2 asked
        for".

        Files and the corpus may have changed too. max_iters may differ, because a run can be
        continued, unless drop_pos depends on it.
        """
        s = self.settings
        config = self.config
        changes = self.changed_files(s.pos_file)
        asked = setting_values(s, *RESULT) | {"dtype": self.kept_dtype(s.dtype)}
        saved = config["settings"] | {"dtype": config["dtype"]}
        if not s.drop_pos:
            del asked["max_iters"]
        if s.pos_file or OWN_FILE not in config["files_sha256"]:
            del asked["pos_file"]  # its name may differ: what is in the files is compared above
        for name, value in asked.items():
            other = saved[name]
            if value != other:
                changes.append(f"{name}: {other!r:.60} in the folder, {value!r:.60} asked for")
        source = config.get("source_sha256")  # older fine-tunes do not say
        if self.source_sha256 and source and source != self.source_sha256:
            changes.append(f"the weights of {s.init_from} have changed since")
        if not changes and config["corpus_sha256"] != corpus_digests(load_corpus(s.dataset)):
            changes.append(f"the corpus {s.dataset} has changed since")
        return changes

    def finished_result(self) -> Result | None:
        """The content of extrapolation.json if the run is finished: trained to its end, and tested
        by every protocol at every length that the settings ask for. Else None.
        """
        s = self.settings
        if self.is_new or not (self.path / "extrapolation.json").exists():
            return None
        if self.differences or self.config["settings"]["max_iters"] != s.max_iters:
            return None
        result = load_result(self.path)
        return result if has_every_test(result, load_corpus(s.dataset), s) else None

    def checkpoint(self) -> dict | None:
        """The newest checkpoint, loaded; None if there is none. UserError for another run's."""
        state = load_checkpoint(self.path)
        if state is None:
            return None
        for name, value in state.get("settings", {}).items():  # older ones do not have them
            own = self.config["settings"][name]
            if value != own:
                path = self.path / f"ckpt-{state['step']}-{state['digest']}.pt"
                raise UserError(
                    f"{path} is of another run than config.json ({name}: {value!r:.60}, not "
                    f"{own!r:.60}): bring back the right file"
                )
        return state

    def resume(self) -> dict | None:
        """The checkpoint to go on from; None where training starts from the first step.

        UserError if the folder holds another run. `config` gets the max_iters of the settings.
        """
        if self.is_new:
            return None
        steps = self.settings.max_iters
        changes = list(self.differences)
        state = self.checkpoint()
        if state and state["step"] > steps:
            changes.append(f"it has already taken {state['step']} steps, more than {steps}")
        if changes:
            raise UserError(
                f"{self.path} holds another run ({'; '.join(changes)}): "
                "choose another --out_dir, or --overwrite=True"
            )
        planned = self.config["settings"]["max_iters"]
        if planned != steps:
            print(f"note: planned for {planned} steps, from here on with the schedule of {steps}")
            self.config["settings"]["max_iters"] = steps
            self.config["max_iters_before"] = planned
        return state

    def write(self, scheme: Scheme) -> None:
        """Lock the folder and write its config.json.

        The folder of a new run is emptied, and gets copies of the scheme's files that are not part
        of this program.
        """
        lock_folder(self.path, self.settings.wait)
        if self.is_new and not self.settings.overwrite and not RunFolder(self.path).is_new:
            raise UserError(
                f"another program has begun a run in {self.path} meanwhile: the same command "
                "resumes it"
            )
        if self.is_new:
            results = ("ckpt-*.pt", "metrics.jsonl", "extrapolation.*", "extend.*", "diagnose.*")
            for pattern in results:  # of a run that is overwritten
                for path in self.path.glob(pattern):
                    path.unlink()
            for name, path in scheme_files(scheme).items():
                copy = self.path / name
                if not is_builtin(name) and path.resolve() != copy.resolve():
                    copy.parent.mkdir(exist_ok=True, parents=True)
                    shutil.copyfile(path, copy)
        write_json(self.path / "config.json", self.config)
