"""What a program needs before it computes: a trained model to test, or a new run to train."""

import os
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

import attention
import data
import families
from configurable import GPTConfig, TrainSettings, UserError, read_json, require
from data import rows
from model import GPT
from positions.grammar import parse
from runs import checkpoint, device
from runs.checkpoint import Run, checkpoint_paths, load_run, load_state, refuse_other_files
from runs.examine import examine
from runs.files import sha256, write_json
from runs.folder import FRESH, note_changes, provenance, read_config, run_folder, take_folder
from runs.processes import ALONE, Processes
from runs.results import Result, finished_result

OTHER = "choose another --out_dir"
FREE = ("block_size", "vocab_size", "dropout", "extend")  # may differ from the model of init_from

# ---- a run to test


def open_run(folder: str | Path, settings: Any) -> Run:
    """The trained model of a run folder, on the device that `settings` name, ready to be tested.

    `settings` are those of a test: device, dtype and pos_file are read from them.
    """
    dtype = settings.dtype
    if dtype == "auto":
        dtype = read_config(Path(folder))[
            "dtype"
        ]  # a run is tested in the format it was trained in
    return load_run(folder, device.pick(settings.device, dtype), settings.pos_file)


def own_corpus(run: Run) -> data.Corpus:
    """The corpus that a run was trained on; UserError if it has another vocabulary now."""
    corpus, size = data.load(run.settings.dataset), run.model.config.vocab_size
    was, now = f"{run.folder} was trained with {size} different tokens", corpus.vocab_size
    require(corpus.fits(size), f"{was}, {corpus.name} has {now} now; make it as it was")
    return corpus


def run_corpus(run: Run, dataset: str = "") -> data.Corpus:
    """The corpus of that name, by default the run's own.

    UserError if its tokenizer is not that of the run. A note is printed if the run's own corpus has
    changed since the training.
    """
    own = own_corpus(run)
    corpus = own if dataset in ("", own.name) else data.load(dataset)
    corpus.verify("val")
    same = all(own.meta.get(key) == corpus.meta.get(key) for key in data.OF_TOKENS)
    problem = f"{corpus.name} has another tokenizer or vocabulary than {own.name} of {run.folder}"
    require(same, f"{problem}: prepare its text with the same --tokenizer")
    rows.check_asked(own, corpus)
    if corpus is own and own.split_sha256("val") != run.config["corpus_sha256"]["val"]:
        print(f"note: {own.name}'s validation split has changed since {run.folder} was trained")
    return corpus


# ---- a run to train


@dataclass
class Start:
    """What a training starts with.

    `settings` are final: the scheme in its canonical text, the size that of the model. `config` is
    config.json of a run that has a checkpoint already; of a new run it has corpus_sha256,
    train_lengths (of the model, at first and since) and read_before (see `texts_read`). `step` is
    the number of steps taken, `state` the checkpoint to go on from, and `result` the result of a
    run that is trained and tested to its end. `lock` is held as long as this object lives.
    """

    settings: TrainSettings
    folder: Path
    corpus: data.Corpus
    compute: device.Compute
    processes: Processes
    model: GPT
    config: dict[str, Any]
    step: int = 0
    state: dict[str, Any] | None = None
    result: Result | None = None
    lock: FileLock | None = None


def start_run(typed: TrainSettings, compute: device.Compute, processes: Processes = ALONE) -> Start:
    """Make a run ready to be trained: corpus, model and folder, with its checkpoint if it has one.

    UserError, and no folder, for what cannot be trained.
    """
    if typed.pos_file:
        print(f"running the position schemes of {typed.pos_file}")
    if compute.kind == "cpu" or typed.deterministic:
        device.repeat_to_the_bit(compute)
    with processes.first_before_others():
        corpus = training_corpus(typed)
    named, typed = typed.named, replace(typed, pos=parse(typed.pos).text)
    if typed.extend or "extend" in named:  # "" keeps the extension of init_from, "none" does not
        typed = replace(typed, extend=parse(typed.extend or "none").text)
    folder = run_folder(typed)
    begun = None if typed.overwrite or not checkpoint_paths(folder) else read_config(folder)
    torch.manual_seed(typed.seed)
    model, config = first_model(typed, corpus, folder, begun)
    config = {"corpus_sha256": corpus_digests(corpus)} | config
    settings = resolve(typed, model.config, named)
    files = None if typed.extend else Path(typed.init_from)  # where those of the extension are
    model.extend(settings.extend, folder if begun else files)
    first = begun["history"][0]["max_iters"] if begun else settings.max_iters
    settings = settings.warmed_up(first).checked()
    for length in lengths_of(settings):
        step_share(settings, processes, length)  # refuses what cannot be shared evenly
        model.draw_ids(settings.seed, 0, length)  # refuses what cannot be drawn
    if settings.examine and processes.first and not begun:
        longest = max(lengths_of(settings))
        for warning in examine(model.config, model.pos.pos_file, length=longest, folder=files):
            print(f"warning: {warning}")
    attention.use(path=typed.attention)
    start = Start(settings, folder, corpus, compute, processes, model.to(compute.device), config)
    with processes.first_before_others():
        open_folder(start)
    same = processes.highest(start.step) == start.step
    require(same, f"{folder} differs between the processes: it must be on a disk that all share")
    return start


def dtype_of_run(settings: TrainSettings) -> str:
    """The number format of the run that these settings go on with; empty if they begin one.

    A run keeps its format on any machine.
    """
    folder = run_folder(replace(settings, pos=parse(settings.pos).text))
    begun = not settings.overwrite and checkpoint_paths(folder)
    return read_config(folder)["dtype"] if begun else ""


def lengths_of(settings: TrainSettings) -> tuple[int, ...]:
    """The lengths that a run trains at."""
    return settings.mixed_lengths or (settings.block_size,)


def step_share(settings: TrainSettings, processes: Processes, length: int) -> tuple[int, int]:
    """How many sequences of a length a process reads in a step, and how many of them at once.

    A step has as many tokens at any length. UserError if they cannot be shared evenly.
    """
    batch = settings.batch_size * settings.block_size // length
    return processes.share(batch * settings.gradient_accumulation_steps, batch)


def training_corpus(settings: TrainSettings) -> data.Corpus:
    """The corpus of a training; UserError, before anything is computed, if it is too short."""
    corpus, size = data.load(settings.dataset), settings.block_size
    for length in lengths_of(settings):
        rows.check_length(corpus, length)
    # refuses a corpus that is too short
    data.sequences(corpus.train, max(lengths_of(settings)), settings.seed, 0, 1)
    corpus.tokenizer.token_bytes()  # refuses a tokenizer that the test would miss
    corpus.verify()
    few = f"the validation split of {settings.dataset} has only {len(corpus.val)} tokens"
    require(len(corpus.val) > size, f"{few}; lower block_size = {size} or add text")
    return corpus


def first_model(
    s: TrainSettings, corpus: data.Corpus, folder: Path, begun: dict | None
) -> tuple[GPT, dict]:
    """The model that init_from names, and what is known of the run, see `Start.config`.

    UserError if it has another vocabulary than the corpus. A run that has begun does not need the
    one that it began from, which may be gone.
    """
    vocab = corpus.vocab_size
    pos_file = Path(s.pos_file).resolve() if s.pos_file else None
    lengths, read = [], {}
    if s.init_from in FRESH:
        model = GPT(replace(s.gpt(vocab), extend=""), pos_file)
    elif begun and begun["settings"]["init_from"] == s.init_from:
        settings = TrainSettings(**begun["settings"] | {"block_size": begun["original_length"]})
        model = GPT(replace(settings.gpt(begun.get("vocab_size", vocab)), extend=""), pos_file)
        model.extend(settings.extend, folder)
    elif is_huggingface(s.init_from):
        refuse_other_tokenizer(corpus, s.init_from)
        model = GPT.from_huggingface(s.init_from)
        lengths = [model.config.block_size]
    else:
        same = folder.resolve() == Path(s.init_from).resolve()
        require(not same, f"{folder} is the run to begin from; {OTHER}")
        source = load_run(s.init_from, pos_file=s.pos_file)
        model, lengths = source.model.train(), source.state["train_lengths"]
        read = texts_read(source)
    theirs = model.config.vocab_size
    problem = f"init_from={s.init_from} has a vocabulary of {theirs}"
    require(corpus.fits(theirs), f"{problem}, not {s.dataset}'s {vocab}")
    set_dropout(model, s.dropout)
    return model, begun or {"train_lengths": [*lengths, *lengths_of(s)], "read_before": read}


def refuse_other_tokenizer(corpus: data.Corpus, source: str) -> None:
    """UserError if a Hugging Face model has a tokenizer.json that a corpus was not made with."""
    own = Path(source, "tokenizer.json")
    if not Path(source).is_dir():
        with suppress(UserError):  # a name without one
            own = families.folder_of(source, "tokenizer.json") / own.name
    known = corpus.meta.get("tokenizer_sha256")
    same = not own.is_file() or (known == sha256(own) if known else has_tokens(own, corpus))
    advice = f"prepare its text with --tokenizer={source}"
    require(same, f"{corpus.name} has another tokenizer than {source}: {advice}")


def has_tokens(own: Path, corpus: data.Corpus) -> bool:
    """Whether a tokenizer.json has the tokens of a corpus of bytes, characters or GPT-2's."""
    content = read_json(own, {"model": {"vocab": (dict, list)}, "added_tokens": (list, type(None))})
    vocab = content["model"]["vocab"]
    names = {n: name for name, n in vocab.items()} if isinstance(vocab, dict) else {}
    names |= {token["id"]: token["content"] for token in content["added_tokens"] or []}
    return all(
        names.get(n) in (data.signs_of(token), token.decode("utf-8", "replace"))
        for n, token in enumerate(corpus.tokenizer.vocabulary)
    )


def data_order(settings: TrainSettings, config: dict[str, Any]) -> str:
    """What sets the order in which the run of a config.json reads its corpus."""
    corpus = config["corpus_sha256"]["train"]
    return f"{corpus}, seed {settings.seed}, lengths {lengths_of(settings)}"


def first_token(settings: TrainSettings, config: dict[str, Any]) -> int:
    """The token of its data order at which a run begins to read."""
    before = config["read_before"].get(data_order(settings, config), 0)
    return 0 if settings.read_again else before


def texts_read(run: Run) -> dict[str, int]:
    """How many tokens of each data order a run and those that it began from have read."""
    order, before = data_order(run.settings, run.config), run.config["read_before"]
    tokens = first_token(run.settings, run.config) + run.state["tokens"]
    return before | {order: max(tokens, before.get(order, 0))}


def is_huggingface(name: str) -> bool:
    """Whether it names a folder of `transformers`, or no path but perhaps a model to download."""
    if os.path.exists(name):
        with suppress(UserError):  # of a damaged folder, which is refused where it is read
            return "model_type" in read_json(Path(name, "config.json"))
        return any(Path(name).glob("*.safetensors"))
    hub = re.fullmatch(r"gpt2[a-z-]*|([\w.-]+)/[\w.-]+", name)
    return bool(hub) and not (hub[1] and (hub[1] == "out" or Path(hub[1]).exists()))


def pretrained_run(name: str, settings: Any) -> str:
    """The run folder that a word names: itself, or one of a Hugging Face model, made if need be.

    That is a run with max_iters=0, whose weights are untouched.
    """
    if not is_huggingface(name):
        return name
    asked = f"{name} is a Hugging Face model: name a corpus of its tokens, as --dataset=NAME"
    made = f"python data/text/prepare.py --name=NAME PATH... --tokenizer={name}"
    require(settings.dataset, f"{asked}, made by {made}")
    folder = Path("out", f"{Path(name).resolve().name}-{settings.dataset}")
    if not checkpoint_paths(folder):
        length = families.settings_of(families.read_config(name), name).block_size
        about = {"init_from": name, "dataset": settings.dataset, "out_dir": str(folder)}
        typed = TrainSettings(**about, block_size=length, max_iters=0, examine=False).checked()
        start = start_run(typed, device.pick(settings.device, settings.dtype))
        checkpoint.save_checkpoint(folder, checkpoint_state(start))
        start.lock.release()
    begun, made = read_config(folder)["settings"]["init_from"], checkpoint_paths(folder)[0]
    names = ("*.safetensors", "config.json", "tokenizer.json")
    theirs = [path for glob in names for path in Path(name).glob(glob)]
    dates = [path.stat().st_mtime for path in (made, *theirs)]
    here = begun == name or (
        os.path.isdir(name) and os.path.realpath(begun) == os.path.realpath(name)
    )
    same = here and dates[0] == max(dates)
    require(same, f"{folder} is of {begun} as it was: rename it to test {name} as it is now")
    print(f"{name}: its run folder is {folder}")
    return str(folder)


def set_dropout(model: GPT, dropout: float) -> None:
    """Let a model that was made with another dropout use this one."""
    model.config = replace(model.config, dropout=dropout)
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = dropout


def resolve(typed: TrainSettings, model: GPTConfig, named: frozenset[str]) -> TrainSettings:
    """The settings of a run: those typed, with the size, scheme and extension of its model.

    UserError if a size or scheme was set, in `named` or as no default, that the model of init_from
    does not have.
    """
    own = {name: of for name, of in asdict(model).items() if name not in FREE}
    for name, theirs in own.items():
        value = getattr(typed, name)
        left_out = name not in named and value == getattr(TrainSettings, name)
        problem = f"{name}={value} does not go with init_from={typed.init_from}"
        require(left_out or value == theirs, f"{problem}, whose model has {theirs}: leave it out")
    extend = typed.extend or model.extend
    return replace(typed, **own, extend="" if extend == "none" else extend)


def checkpoint_state(start: Start, step: int = 0, tokens: int = 0, **training: Any) -> dict:
    """What a checkpoint holds: only tensors, numbers, texts, lists and dicts.

    `training` has the states of optimizer and scaler. Data order and all that is random follow from
    the seed and the step.
    """
    model, how = start.model, {"optimizer": {}, "scaler": {}} | training
    state = {"model": model.state_dict(), "step": step, "tokens": tokens} | how
    state |= {"gpt": asdict(model.config), "settings": asdict(start.settings)}
    state |= {"original_length": model.config.block_size}
    return state | {"train_lengths": start.config["train_lengths"]}


# ---- its folder


def open_folder(start: Start) -> None:
    """Take the run folder, find what was done already, and write or compare its config.json."""
    s, folder, model, processes = start.settings, start.folder, start.model, start.processes
    if processes.first:
        start.lock = take_folder(folder, s)
    many = f", {processes.size} processes" if processes.size > 1 else ""
    print(f"{folder}: {model.parameter_count:,} parameters; {model.pos.describe()}")
    print(f"on {start.compute.reason}{many}")
    start.state, begun = load_state(folder), "history" in start.config
    require(begun == bool(start.state), f"{folder} has just been changed; start again")
    if begun:
        resume(start, start.config)
    elif s.init_from not in FRESH:
        place = f"its data from token {first_token(s, start.config):,} on"
        print(f"init_from={s.init_from}: its weights, a new optimizer, {place}")
    elif s.extend:
        print(f"note: {s.extend} is trained with from the start; --init_from=RUN extends a run")
    if processes.first:
        write_config(start)


def resume(start: Start, config: dict[str, Any]) -> None:
    """Check that a checkpoint belongs to this run, and whether anything is left to do."""
    settings, folder = start.settings, start.folder
    refuse_other_files(folder, config, start.state)
    if start.state["settings"]["max_iters"] != settings.max_iters:
        change_length(start)
    start.step = start.state["step"]
    finished = start.step == settings.max_iters
    start.result = finished_result(folder, settings) if finished else None
    if start.result is None:  # a finished run does not need its corpus
        same = config["corpus_sha256"] == corpus_digests(start.corpus)
        problem = f"the corpus {settings.dataset} has changed since {folder} was begun"
        require(same, f"{problem}: bring it back, {OTHER}, or --overwrite=True")
        print(f"resuming at step {start.step}")


def change_length(start: Start) -> None:
    """Let a run go on to another max_iters than that of its checkpoint; UserError if it cannot.

    With wsd it goes back to a checkpoint before its decay, and before the new one.
    """
    s, folder, step = start.settings, start.folder, start.state["step"]
    was, now = start.state["settings"]["max_iters"], f"max_iters = {s.max_iters}"
    fixed = f"{folder}: a run with drop_pos or staged keeps its max_iters = {was}; {OTHER}"
    require(not (s.drop_pos or s.staged), fixed)
    require(step <= s.max_iters, f"{folder} has taken {step} steps, and {now}; raise it or {OTHER}")
    last = min(replace(s, max_iters=was).decay_begin, s.decay_begin)
    if s.lr_schedule == "wsd" and step > last:
        start.state = load_state(folder, last=last)
        require(start.state, f"{folder} lacks a checkpoint from before the decay; {OTHER}")
        for path in {*checkpoint_paths(folder)} - {*checkpoint_paths(folder, last)}:
            path.unlink()
        print(f"going back to step {start.state['step']}, before the decay of the learning rate")
    elif s.lr_schedule == "cosine" and s.decay_lr and not s.lr_decay_iters:
        print(f"note: the cosine ended at {was} so far, and ends at {s.max_iters} now")


def write_config(start: Start) -> None:
    """Write config.json of a new run, or of one with another max_iters; say what has changed."""
    config, settings = start.config, start.settings
    where = {"device": start.compute.reason, "dtype": start.compute.dtype_name}
    where["dtype_asked"] = settings.dtype
    now = provenance() | where | {"processes": start.processes.size}
    if "history" in config:
        note_changes(config, now)
        if config["settings"]["max_iters"] == settings.max_iters:
            return
    new = {"history": []} | describe_run(start) | now | config | {"settings": asdict(settings)}
    length = {name: now[name] for name in ("command", "git_commit")}
    length |= {"from_step": start.step, "max_iters": settings.max_iters}
    write_json(start.folder / "config.json", new | {"history": [*new["history"], length]})


def corpus_digests(corpus: data.Corpus) -> dict[str, str]:
    """SHA-256 of both splits."""
    return {split: corpus.split_sha256(split) for split in ("train", "val")}


def describe_run(start: Start) -> dict[str, Any]:
    """What config.json says of a run, beside its provenance; the files that it needs are copied."""
    s, model, path = start.settings, start.model, start.model.attention_path
    files = {piece.file.name: piece.file for piece in model.pos.extensions if piece.file}
    own = {"pos_file.py": Path(s.pos_file)} if s.pos_file else {}
    for name, file in (files | own).items():
        if file.resolve() != (start.folder / name).resolve():  # it may be the copy itself
            shutil.copyfile(file, start.folder / name)
    compiled = s.compile and not device.missing_compiler()
    with torch.no_grad():
        tested = path(s.block_size)
    about = {"vocab_size": model.config.vocab_size, "parameters": model.parameter_count}
    about |= {"original_length": model.config.block_size, "wandb_id": uuid.uuid4().hex}
    about |= {"attention": {"train": path(s.block_size, compiled=compiled), "test": tested}}
    about |= {"extension_files_sha256": {name: sha256(file) for name, file in files.items()}}
    return about | {"pos_file_sha256": sha256(own["pos_file.py"]) if own else None}
