"""A run: its folder, its config.json and its checkpoints.

A checkpoint is `ckpt-STEP-DIGEST.pt`. DIGEST is the first 16 digits of the SHA-256 of its content,
so damage is noticed. The two newest are kept. A file gets its name only once it is complete, so a
run may be killed at any moment.
"""

import ast
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
import uuid
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import data
from configurable import (
    GPTConfig,
    TrainSettings,
    UserError,
    read_json,
    replace_file,
    setting_values,
    sha256,
    to_argv,
    write_json,
)
from data import rows
from model import GPT
from runs.device import Compute, pick
from runs.huggingface import check_tokenizer, is_huggingface, load_model
from runs.records import Result
from runs.results import has_every_test, load_result
from scheme import ZOO, Scheme

ROOT = Path(__file__).resolve().parents[1]
RESTORE = "restore a good copy, or start again with --overwrite=True"
LOCKS: list[FileLock] = []  # held until the process ends: a lock without a reference is released
OWN_FILE = "pos_file.py"  # the copy of --pos_file in a run folder
# settings that have a place of their own in the folder's name, or do not belong there
NOT_IN_DIGEST = ("--pos=", "--dataset=", "--block_size=", "--seed=", "--max_iters=", "--pos_file=")


class SavedSettings(TrainSettings):
    """The settings of a run that exists, even if today they would be refused together."""

    def check_together(self) -> None:
        pass


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


# ---- the folder


def run_folder(s: TrainSettings) -> Path:
    """out_dir; by default out/<pos>-<dataset>-L<block_size>-s<seed>.

    Six digits of a digest are appended if other settings that change the result differ from the
    defaults, or if the scheme cannot be written in a file name. max_iters does not count, because
    it may be raised, and neither does the name of pos_file.
    """
    if s.out_dir:
        return Path(s.out_dir).expanduser()
    others = [word for word in to_argv(s, "result") if not word.startswith(NOT_IN_DIGEST)]
    pos = s.pos.replace(" ", "")
    safe = re.sub(r"[^A-Za-z0-9.=+]+", "_", pos).strip("_")[:60]
    name = f"{safe}-{s.dataset}-L{s.block_size}-s{s.seed}"
    if others or safe != pos:
        digest = hashlib.sha256(" ".join([pos, *others]).encode()).hexdigest()
        name += f"-{digest[:6]}"
    return Path("out", name)


def checkpoint_paths(folder: Path) -> list[Path]:
    """The paths of the checkpoints in a run folder, the newest first; their content is not read."""
    paths = folder.glob("ckpt-[0-9]*-????????????????.pt")
    return sorted(paths, key=lambda path: int(path.name.split("-")[1]), reverse=True)


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
    folders = [str(Path(word)) for word in typed if not Path(word).is_file()]
    if not folders:
        raise UserError("no run folder is named: add one, such as out/alibi-stdlib-L128-s1337")
    return list(dict.fromkeys(folders))


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
    for path in sorted(
        [
            *ROOT.glob("*.py"),
            *ROOT.glob("runs/*.py"),
            *ROOT.glob("runs/*.toml"),
            *ROOT.glob("data/*.py"),
        ]
    ):
        sources.update(path.read_bytes())
    return {
        "command": sys.argv,
        "git_commit": commit,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "sources_sha256": sources.hexdigest(),
    }


def scheme_files(scheme: Scheme) -> dict:
    """{name: path} of the files that define the pieces of a scheme, of the modules that these
    import from zoo/ or from the user's folder, directly or through others, and of the files that
    options name.

    Names are such as "posenc.py", "zoo/fire.py", "pos_file.py", or "helper.py" for a module beside
    the user's file; option files have their base names. Imports are found in the text.
    """
    files = {"posenc.py": ROOT / "posenc.py"}
    waiting = []
    for piece in (*scheme.pieces.values(), *scheme.extensions.values()):
        waiting.append(Path(inspect.getfile(type(piece))).resolve())
        if piece.file:
            files[piece.file.name] = piece.file
    while waiting:
        path = waiting.pop()
        if path in files.values() or not path.is_file():
            continue
        folder = path.parent
        if folder == ZOO:
            files[f"zoo/{path.name}"] = path
        elif path == scheme.pos_file:
            files[OWN_FILE] = path
        else:
            folder = scheme.pos_file.parent
            files[path.relative_to(folder).as_posix()] = path
        modules = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):  # the name may be that of a module
                modules += [f"{node.module or ''}.{alias.name}" for alias in node.names]
        for module in modules:
            parts = module.strip(".").split(".")
            if parts[0] in ("posenc", "configurable"):
                continue  # posenc.py counts for every scheme, configurable.py for none
            root = ROOT if parts[0] == "zoo" else folder
            for place in (path.parent, root):
                for part in parts:  # of a.b.c: a, a.b and a.b.c
                    place = place / part
                    waiting += [place.with_suffix(".py"), place / "__init__.py"]
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
        missing = {"dtype", "train_lengths", "files_sha256", "corpus_sha256"} - config.keys()
        if missing:
            raise KeyError(min(missing))
    except TypeError as error:  # a setting that no longer exists
        raise UserError(f"{path} is of another version of this program: {error}") from None
    except (KeyError, UserError) as error:
        raise UserError(f"{path} is damaged ({error}): {RESTORE}") from None
    return config


def changed_files(folder: Path, config: dict, pos_file: str) -> list[str]:
    """A sentence for each file of a run's schemes that has changed since the run began.

    Of the user's own files the copies in the folder are read, or, if `pos_file` is typed again,
    that file and the modules beside it.
    """
    changed = []
    for name, digest in config["files_sha256"].items():
        path = folder / name
        if is_builtin(name):
            path = ROOT / name
        elif pos_file and name == OWN_FILE:
            path = Path(pos_file)
        elif pos_file and path.suffix == ".py":
            path = Path(pos_file).parent / name
        if scheme_sha256(path) != digest:
            changed.append(f"{path}, which defines its scheme, has changed since")
    return changed


def scheme_digests(scheme: Scheme) -> dict:
    """{name: SHA-256} of the `scheme_files`; docstrings do not count."""
    return {name: scheme_sha256(path) for name, path in scheme_files(scheme).items()}


def scheme_sha256(path: Path) -> str:
    """SHA-256 of a file that defines a scheme, without the docstrings if it is Python."""
    if path.suffix != ".py":
        return sha256(path)
    text = path.read_text(encoding="utf-8")  # the same for all kinds of line ends
    lines = text.encode().split(b"\n")
    with contextlib.suppress(SyntaxError):  # of a damaged file
        for node in ast.walk(ast.parse(text)):
            is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if is_documented and ast.get_docstring(node):
                docstring = node.body[0]
                start = docstring.lineno - 1
                stop = docstring.end_lineno
                # what stands before and behind it, in as many lines
                before = lines[start][: docstring.col_offset]
                behind = lines[stop - 1][docstring.end_col_offset :]
                lines[start:stop] = [before + behind] + [b""] * (stop - start - 1)
    return hashlib.sha256(b"\n".join(line for line in lines if line.strip())).hexdigest()


def is_builtin(name: str) -> bool:
    """Whether a scheme's file is one of this program, which run folders need no copy of."""
    return name == "posenc.py" or name.startswith("zoo/")


def differences(folder: Path, config: dict, s: TrainSettings) -> list[str]:
    """How the run in a folder differs from that of these settings, as in "seed: 1 in the folder, 2
    asked for".

    Files and the corpus may have changed too. max_iters may differ, because a run can be continued,
    unless drop_pos depends on it.
    """
    changes = changed_files(folder, config, s.pos_file)
    asked = setting_values(s, "result")
    if not s.drop_pos:
        del asked["max_iters"]
    if s.pos_file or OWN_FILE not in config["files_sha256"]:
        del asked["pos_file"]  # its name may differ: what is in the files is compared above
    for name, value in asked.items():
        other = config["settings"][name]
        if value != other:
            changes.append(f"{name}: {other!r:.60} in the folder, {value!r:.60} asked for")
    if s.dtype not in ("auto", config["dtype"]):
        changes.append(f"dtype: {config['dtype']} in the folder, {s.dtype} asked for")
    if not changes and config["corpus_sha256"] != corpus_digests(data.load(s.dataset)):
        changes.append(f"the corpus {s.dataset} has changed since")
    return changes


def open_folder(s: TrainSettings) -> tuple[dict | None, dict | None]:
    """config.json and the newest checkpoint of the run that these settings resume; None for what
    does not exist. UserError if out_dir holds another run.
    """
    folder = Path(s.out_dir)
    if s.overwrite or not ((folder / "config.json").exists() or checkpoint_paths(folder)):
        return None, None
    config = read_config(folder)
    state = load_checkpoint(folder)
    changes = differences(folder, config, s)
    if state and state["step"] > s.max_iters:
        changes.append(f"it has already taken {state['step']} steps, more than {s.max_iters}")
    if changes:
        raise UserError(
            f"{folder} holds another run ({'; '.join(changes)}): "
            "choose another --out_dir, or --overwrite=True"
        )
    planned = config["settings"]["max_iters"]
    if planned != s.max_iters:
        print(f"note: planned for {planned} steps, from here on with the schedule of {s.max_iters}")
        config["settings"]["max_iters"] = s.max_iters
        config["max_iters_before"] = planned
    return config, state


def new_config(run: Run, train_lengths: list[int], processes: int) -> dict:
    """The content of config.json of a new run, whose weights see these lengths in training."""
    return provenance() | {
        "train_lengths": train_lengths,
        "settings": asdict(run.settings),
        "device": run.compute.name,
        "dtype": run.compute.dtype_name,
        "dtype_asked": run.settings.dtype,
        "processes": processes,
        "files_sha256": scheme_digests(run.model.pos),
        "corpus_sha256": corpus_digests(run.corpus),
        "parameters": run.model.parameter_count,
        "run_id": uuid.uuid4().hex,
    }


def write_folder(run: Run, is_new: bool) -> None:
    """Lock the folder of a run and write its config.json.

    The folder of a new run is emptied, and gets copies of the scheme's files that are not part of
    this program.
    """
    folder = run.folder
    lock_folder(folder)
    if is_new:
        for pattern in ("ckpt-*.pt", "metrics.jsonl", "extrapolation.*", "extend.*", "diagnose.*"):
            for path in folder.glob(pattern):  # of a run that is overwritten
                path.unlink()
        for name, path in scheme_files(run.model.pos).items():
            copy = folder / name
            if not is_builtin(name) and path.resolve() != copy.resolve():
                copy.parent.mkdir(exist_ok=True, parents=True)
                shutil.copyfile(path, copy)
    write_json(folder / "config.json", run.config)


def finished_result(s: TrainSettings) -> Result | None:
    """The content of extrapolation.json if the run of these settings is finished: trained to its
    end, and tested by every protocol at every length that they ask for. Else None.
    """
    folder = run_folder(s)
    if not (folder / "extrapolation.json").exists():
        return None
    config = read_config(folder)
    if differences(folder, config, s) or config["settings"]["max_iters"] != s.max_iters:
        return None
    result = load_result(folder)
    return result if has_every_test(result, data.load(s.dataset), s) else None


# ---- checkpoints


def save_checkpoint(
    run: Run, optimizers: list[torch.optim.Optimizer], scaler: torch.amp.GradScaler
) -> None:
    """Write a checkpoint of a run and set `run.digest`; only then delete old ones.

    UserError if the disk is full; the checkpoints before it are then kept.
    """
    state = {
        "model": run.model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "scaler": scaler.state_dict(),
        "step": run.step,
        "gpt": asdict(run.model.config),
        "train_lengths": run.config["train_lengths"],
    }
    unnamed = run.folder / ".ckpt.new"
    run.digest = replace_file(unnamed, lambda file: torch.save(state, file))[:16]
    newest = run.folder / f"ckpt-{run.step}-{run.digest}.pt"
    os.replace(unnamed, newest)
    for path in checkpoint_paths(run.folder)[2:]:
        path.unlink()


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


# ---- a trained run


def load_run(
    folder: str | Path, device: str = "auto", dtype: str = "auto", pos_file: str = ""
) -> Run:
    """Load the trained model of a run folder, in eval mode; dtype is by default that of the run.

    UserError if it is missing or damaged, or if a file that defines its scheme has changed. A run
    with a scheme of the user's own is loaded only if `pos_file` names its file again, because that
    is code.
    """
    folder = Path(folder)
    config = read_config(folder)
    if OWN_FILE in config["files_sha256"] and not pos_file:
        raise UserError(
            f"{folder} was trained with a scheme of your own; loading it runs that code: "
            f"type --pos_file={folder / OWN_FILE} if you trust it"
        )
    changed = changed_files(folder, config, pos_file)
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
    compute = pick(device, config["dtype"] if dtype == "auto" else dtype)
    model = GPT(GPTConfig(**state["gpt"]), pos_file, folder)
    model.load_state_dict(state["model"])
    model = model.to(compute.device).eval()
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
    model = model.to(compute.device).eval()
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
    data.sequences(corpus.train, length, settings.seed, 0, 1)  # refuses one that is too short
    if len(corpus.val) <= length:
        raise UserError(
            f"the validation split of {settings.dataset} has only {len(corpus.val)} tokens; "
            f"lower block_size = {length} or add text"
        )
    corpus.tokenizer.decode([])  # fails now, rather than in the test, if there is no tokenizer
    corpus.verify()
    return corpus


def corpus_digests(corpus: data.Corpus) -> dict:
    """{split: SHA-256} of both splits."""
    return {split: corpus.split_sha256(split) for split in ("train", "val")}
