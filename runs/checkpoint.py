"""A run: its folder, its config.json and its checkpoints.

A checkpoint is `ckpt-STEP-DIGEST.pt`. DIGEST is the first 16 digits of the SHA-256 of its content,
so damage is noticed. The two newest are kept. A file gets its name only once it is complete, so a
run may be killed at any moment.
"""

import contextlib
import difflib
import hashlib
import inspect
import os
import pickle
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

import data
from configurable import (
    RESULT,
    GPTConfig,
    TrainSettings,
    UserError,
    mixed_seed,
    read_json,
    replace_file,
    setting_values,
    sha256,
    to_argv,
    write_json,
)
from data import rows
from model import GPT
from posenc import Piece
from runs.device import Compute, pick
from runs.huggingface import check_tokenizer, is_huggingface, load_model
from runs.records import Result
from runs.results import has_every_test, load_result
from scheme import ZOO, Scheme, load_file

ROOT = Path(__file__).resolve().parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
RESTORE = "restore a good copy, or start again with --overwrite=True"
LOCKS: list[FileLock] = []  # held until the process ends: a lock without a reference is released
OWN_FILE = "pos_file.py"  # the copy of --pos_file in a run folder
# settings that have a place of their own in the folder's name, or do not belong there
NOT_IN_DIGEST = ("--pos=", "--dataset=", "--block_size=", "--seed=", "--max_iters=", "--pos_file=")


class SavedSettings(TrainSettings):
    """The settings of a run that exists, even if today they would be refused together."""

    def check_together(self) -> None:
        pass


# ---- checkpoints: one that appears has its whole content


def checkpoint_paths(folder: Path) -> list[Path]:
    """The paths of the checkpoints in a run folder, the newest first; their content is not read."""
    return sorted(folder.glob("ckpt-[0-9]*-????????????????.pt"), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The number of steps after which a checkpoint was saved."""
    return int(path.name.split("-")[1])


def save_checkpoint(folder: Path, state: dict) -> str:
    """Write a checkpoint, and only then delete old ones; returns the digest in its name.

    UserError if the disk is full; the checkpoints before it are then kept.
    """
    unnamed = folder / ".ckpt.new"
    digest = replace_file(unnamed, lambda file: torch.save(state, file))[:16]
    os.replace(unnamed, folder / f"ckpt-{state['step']}-{digest}.pt")
    for path in checkpoint_paths(folder)[2:]:
        path.unlink()
    return digest


def load_checkpoint(folder: Path) -> dict | None:
    """Load the newest undamaged checkpoint of a run, with its "digest"; None if there is none.

    Damaged ones are named on standard error and skipped. UserError if all are damaged, or if one
    holds more than numbers, strings and tensors: code in it is never run.
    """
    for path in checkpoint_paths(folder):
        digest = path.stem[-16:]
        try:
            if sha256(path)[:16] != digest:
                print(f"{path} is damaged: trying the one before it", file=sys.stderr)
                continue
            state = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:  # training has meanwhile saved another and deleted this one
            return load_checkpoint(folder)
        except pickle.UnpicklingError as error:
            raise UserError(
                f"{path} is not a checkpoint of this program: do not trust it"
            ) from error
        return state | {"digest": digest}
    if checkpoint_paths(folder):
        raise UserError(f"all checkpoints in {folder} are damaged: {RESTORE}")
    return None


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


def lock_folder(folder: Path) -> None:
    """Lock a folder, which is made if necessary, against other programs until this process ends.

    UserError if another program has locked it. A process may lock a folder more than once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=1, is_singleton=True)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"{folder} is in use by another program; wait until it ends") from None
    LOCKS.append(lock)
    for path in folder.glob(".*.new"):  # half written by a process that was killed
        path.unlink()


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
    """What is needed to repeat a run: command, commit, versions, threads, a digest of the sources.

    The zoo is not in that digest: a run records digests of the schemes that it uses.
    """
    commit = ""
    with contextlib.suppress(OSError):  # git may be absent
        git = "git describe --always --abbrev=40 --dirty --exclude=*".split()
        commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    sources = hashlib.sha256()
    for pattern in ("*.py", "common/*.py", "runs/*.py", "runs/*.toml", "data/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            sources.update(path.read_bytes())
    return {
        "command": sys.argv,
        "git_commit": commit,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "sources_sha256": sources.hexdigest(),
    }


def scheme_files(scheme: Scheme) -> dict:
    """{name: path} of the files that define the pieces of a scheme: those of their classes and of
    the classes that these derive from, all that a user's file has imported from its own folder, and
    the files that options name.

    Names are such as "posenc.py", "zoo/fire.py", "pos_file.py", or "helper.py" for a module beside
    the user's file; option files have their base names.
    """
    files = {"posenc.py": ROOT / "posenc.py"}
    for piece in (*scheme.pieces.values(), *scheme.extensions.values()):
        if piece.file:
            files[piece.file.name] = piece.file
        for cls in type(piece).mro():
            if not issubclass(cls, Piece):
                continue
            path = Path(inspect.getfile(cls)).resolve()
            if path.parent == ZOO:
                files[f"zoo/{path.name}"] = path
            elif path == scheme.catalogue.pos_file:
                files[OWN_FILE] = path
                _, helpers = load_file(path)
                for helper in helpers:
                    files[helper.relative_to(path.parent).as_posix()] = helper
    return files


def read_config(folder: str | Path) -> dict:
    """Read config.json of a run folder; UserError if it is missing or damaged."""
    path = Path(folder, "config.json")
    if not path.exists():
        runs = [file.parent.name for file in Path("out").glob("*/config.json")]
        near = difflib.get_close_matches(Path(folder).name, runs, 1)
        advice = f"did you mean out/{near[0]}?" if near else "name a run folder, as out/RUN"
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
    commit = config.get("git_commit") or "unknown"
    return UserError(
        f"{folder} was made by version {made_by} of this program (commit {commit}), and this is "
        f"version {VERSION}: train it again with --overwrite=True, or check out that version"
    )


def scheme_digests(scheme: Scheme) -> dict:
    """{name: SHA-256} of the `scheme_files`."""
    return {name: sha256(path) for name, path in scheme_files(scheme).items()}


def is_builtin(name: str) -> bool:
    """Whether a scheme's file is one of this program, which run folders need no copy of."""
    return name == "posenc.py" or name.startswith("zoo/")


def corpus_digests(corpus: data.Corpus) -> dict:
    """{split: SHA-256} of both splits."""
    return {split: corpus.split_sha256(split) for split in ("train", "val")}


def new_config(
    s: TrainSettings,
    model: GPT,
    compute: Compute,
    corpus: data.Corpus,
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
        "parameters": model.parameter_count,
        "run_id": uuid.uuid4().hex,
    }


# ---- what is in a folder


@dataclass
class RunFolder:
    """A run folder, and the settings that ask for its run: None where the run is only read.

    Each file is read when it is first asked for, and once. UserError if it is damaged.
    """

    path: Path
    settings: TrainSettings | None = None

    @classmethod
    def open(cls, s: TrainSettings) -> "RunFolder":
        """The folder of the run of these settings; it need not exist."""
        return cls(run_folder(s), s)

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
        that file and the modules beside it.
        """
        changed = []
        for name, digest in self.config["files_sha256"].items():
            path = self.path / name
            if is_builtin(name):
                path = ROOT / name
            elif pos_file and name == OWN_FILE:
                path = Path(pos_file)
            elif pos_file and path.suffix == ".py":
                path = Path(pos_file).parent / name
            if not path.is_file() or sha256(path) != digest:
                changed.append(f"{path}, which defines its scheme, has changed since")
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
        trained = config["settings"] | {"dtype": config["dtype"]}
        if not s.drop_pos:
            del asked["max_iters"]
        if s.pos_file or OWN_FILE not in config["files_sha256"]:
            del asked["pos_file"]  # its name may differ: what is in the files is compared above
        for name, value in asked.items():
            other = trained[name]
            if value != other:
                changes.append(f"{name}: {other!r:.60} in the folder, {value!r:.60} asked for")
        if not changes and config["corpus_sha256"] != corpus_digests(data.load(s.dataset)):
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
        return result if has_every_test(result, data.load(s.dataset), s) else None

    def resume(self) -> dict | None:
        """The checkpoint to go on from; None where training starts from the first step.

        UserError if the folder holds another run. `config` gets the max_iters of the settings.
        """
        if self.is_new:
            return None
        steps = self.settings.max_iters
        changes = list(self.differences)
        state = load_checkpoint(self.path)
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
        lock_folder(self.path)
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


# ---- a run in memory


@dataclass
class Run:
    """A model, the settings that it is trained with, and its folder.

    `settings` are final: the scheme in canonical form, the size that of the model. `config` is the
    content of config.json. `step` is the number of steps taken, `digest` that in the name
    of the file that the weights come from, `saved` the content of that file if training resumes.
    `first_token` begins every window in a test of a pretrained model whose tokenizer adds one.
    """

    folder: Path
    settings: TrainSettings
    model: GPT
    compute: Compute
    config: dict
    step: int = 0
    digest: str = ""
    saved: dict | None = None
    first_token: int | None = None

    def __repr__(self) -> str:
        s = self.settings
        return (
            f"Run {self.folder}, step {self.step} of {s.max_iters}\n"
            f"{self.model.parameter_count:,} parameters; {self.model.pos.describe()}\n"
            f"trained on {s.dataset} at L = {s.block_size}"
        )

    @property
    def tokens(self) -> int:
        """The number of tokens trained on so far."""
        return self.step * self.settings.tokens_per_step

    @property
    def data_seed(self) -> int:
        """The seed of the order of its data; each fine-tune of a chain has its own."""
        trainings = len(self.config["train_lengths"])
        return self.settings.seed if trainings == 1 else mixed_seed(self.settings.seed, trainings)

    @cached_property
    def corpus(self) -> data.Corpus:
        """The corpus that it is trained on; UserError if its vocabulary has changed since."""
        corpus = data.load(self.settings.dataset)
        if not corpus.fits(self.model.config.vocab_size):
            raise UserError(
                f"{corpus.name} has another vocabulary than the model of {self.folder}: name the "
                "--dataset that it was trained on, or make that corpus again as it was"
            )
        return corpus

    def save(self, optimizers: list[torch.optim.Optimizer], scaler: torch.amp.GradScaler) -> None:
        """Write a checkpoint of its training."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "scaler": scaler.state_dict(),
            "step": self.step,
            "gpt": asdict(self.model.config),
        }
        self.digest = save_checkpoint(self.folder, state)


def load_run(
    folder: str | Path, device: str = "auto", dtype: str = "auto", pos_file: str = ""
) -> Run:
    """Load the trained model of a run folder, in eval mode; dtype is by default that of the run.

    UserError if it is missing or damaged, or if a file that defines its scheme has changed. A run
    with a scheme of the user's own is loaded only if `pos_file` names its file again, because that
    is code.
    """
    opened = RunFolder(Path(folder))
    folder = opened.path
    config = opened.config
    if OWN_FILE in config["files_sha256"] and not pos_file:
        raise UserError(
            f"{folder} was trained with a scheme of your own; loading it runs that code: "
            f"type --pos_file={folder / OWN_FILE} if you trust it"
        )
    changed = opened.changed_files(pos_file)
    if changed:
        advice = "bring the file back"
        if pos_file:
            advice = f"name the copy in the run, --pos_file={folder / OWN_FILE}"
        raise UserError(
            f"{folder}: {changed[0]}, so its weights belong to another formula: {advice}, or train "
            "again with --overwrite=True"
        )
    state = load_checkpoint(folder)
    if state is None:
        raise UserError(f"{folder} holds no checkpoint yet: train it first")
    compute = pick(device, opened.kept_dtype(dtype))
    model = GPT(GPTConfig(**state["gpt"]), pos_file, folder)
    model.load_state_dict(state["model"])
    model = compute.place(model).eval()
    settings = SavedSettings(**config["settings"])
    return Run(folder, settings, model, compute, config, state["step"], state["digest"])


def open_model(name: str, settings: Any, first_token: bool = False) -> Run:
    """Load a model to test by its name on the command line: a run folder, or a Hugging Face folder
    or name. Of `settings`, device, dtype, dataset and pos_file are used.

    With `first_token`, windows will begin with the token that its tokenizer puts first, if any.
    """
    if not is_huggingface(name):
        return load_run(name, settings.device, settings.dtype, settings.pos_file)
    if not settings.dataset:
        raise UserError(f"{name} is a Hugging Face model: name a corpus of its tokens by --dataset")
    first = check_tokenizer(name, data.load(settings.dataset))
    if not first_token:
        first = None
    model = load_model(name)
    digest = hashlib.sha256()
    if first is not None:
        digest.update(b"%d" % first)  # measured as another model
    for weight in model.state_dict().values():
        digest.update(weight.contiguous().view(torch.uint8).numpy())
    checkpoint = digest.hexdigest()[:16]
    compute = pick(settings.device, settings.dtype)
    shape = asdict(model.config)
    del shape["vocab_size"], shape["first_length"]
    s = TrainSettings(init_from=name, dataset=settings.dataset, max_iters=0, **shape)
    train_lengths = list(dict.fromkeys([model.config.first_length, s.block_size]))
    config = {"dtype": compute.dtype_name, "train_lengths": train_lengths}
    folder = Path("out", "tests", f"{Path(name).resolve().name}-{checkpoint[:10]}")
    model = compute.place(model).eval()
    return Run(folder, s, model, compute, config, digest=checkpoint, first_token=first)


def run_corpus(run: Run, dataset: str = "") -> data.Corpus:
    """The corpus to test a run on, by default its own; UserError if it has another tokenizer."""
    trained = run.corpus
    corpus = data.load(dataset or trained.name)
    corpus.verify("val")
    digests = run.config.get("corpus_sha256")  # a Hugging Face model has none
    if corpus.name == trained.name and digests not in (None, corpus_digests(corpus)):
        raise UserError(
            f"{corpus.name} has changed since {run.folder} was trained on it: make it as it was, "
            "or give the new text another name"
        )
    for key in data.OF_TOKENS:
        if corpus.meta.get(key) != trained.meta.get(key):
            raise UserError(
                f"{corpus.name} has another tokenizer than {trained.name}, which {run.folder} was "
                "trained on: prepare its text with the same --tokenizer"
            )
    return corpus


# ---- a run to train


def training_corpus(settings: TrainSettings) -> data.Corpus:
    """The corpus to train on; UserError, before anything is computed, if it is too short."""
    corpus = data.load(settings.dataset)
    length = settings.block_size
    rows.check_length(corpus, length)
    for name, tokens in (("training", corpus.train), ("validation", corpus.val)):
        if len(tokens) <= length:
            raise UserError(
                f"the {name} split of {corpus.name} has only {len(tokens)} tokens; "
                f"lower block_size = {length} or add text"
            )
    corpus.tokenizer.decode([])  # fails now, rather than in the test, if there is no tokenizer
    corpus.verify()
    return corpus
