"""What a program needs before it computes: a trained model to test, or a new run to train."""

import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

import data
from configurable import GPTConfig, TrainSettings, UserError, require
from model import GPT
from positions.catalogue import read
from runs import device
from runs.checkpoint import Run, checkpoint_paths, load_run, load_state, refuse_other_files
from runs.examine import examine
from runs.files import copy_file, read_json, sha256, write_json
from runs.folder import note_changes, provenance, read_config, run_folder, take_folder
from runs.processes import ALONE, Processes
from runs.results import Result, finished_result

# ---- a run to test


def open_run(folder: str | Path, settings: Any) -> Run:
    """The trained model of a run folder, on the device that `settings` name, ready to be tested.

    `settings` are those of a test: device, dtype and pos_file are read from them.
    """
    compute = device.pick(settings.device, settings.dtype)
    run = load_run(folder, compute.device, settings.pos_file)
    return replace(run, compute=compute)


def own_corpus(run: Run) -> data.Corpus:
    """The corpus that a run was trained on; UserError if it has another vocabulary now."""
    corpus, size = data.load(run.settings.dataset), run.model.config.vocab_size
    before = f"{run.folder} was trained with {size} different tokens"
    now = f"{corpus.name} has {corpus.vocab_size} now; make the corpus as it was then"
    require(corpus.vocab_size == size, f"{before}, {now}")
    return corpus


def run_corpus(run: Run, dataset: str = "") -> data.Corpus:
    """The corpus of that name, by default the run's own.

    UserError if its tokenizer is not that of the run. A note is printed if the run's own corpus has
    changed since the training.
    """
    own = own_corpus(run)
    corpus = own if dataset in ("", own.name) else data.load(dataset)
    corpus.verify("val")
    keys = ("tokenizer", "vocab_size", "characters")
    same = all(own.meta.get(key) == corpus.meta.get(key) for key in keys)
    trained_on = f"{own.name}, which {run.folder} was trained on"
    advice = "prepare its text with the same --tokenizer"
    require(same, f"{corpus.name} has another tokenizer or vocabulary than {trained_on}: {advice}")
    if corpus is own and own.split_sha256("val") != run.config["corpus_sha256"]["val"]:
        change = "its validation split has changed"
        print(f"note: {own.name} is not the text that {run.folder} was trained with; {change}")
    return corpus


# ---- a run to train


@dataclass
class Start:
    """What a training starts with.

    `settings` are final: the scheme in its canonical text, the size that of the model. `step` is
    the number of steps that were taken already, `state` the checkpoint to go on from, and `result`
    the result of a run that is trained and tested to its end. `read_before` is what the runs before
    it have read, see `texts_read`.
    """

    settings: TrainSettings
    folder: Path
    corpus: data.Corpus
    compute: device.Compute
    processes: Processes
    model: GPT
    train_lengths: list[int]  # at first, then since
    read_before: dict[str, int]
    step: int = 0
    state: dict[str, Any] | None = None
    result: Result | None = None
    lock: FileLock | None = None  # held as long as this object lives


def start_run(typed: TrainSettings, compute: device.Compute, processes: Processes = ALONE) -> Start:
    """Make a run ready to be trained: corpus, model and folder, with its checkpoint if it has one.

    UserError, and no folder, for what cannot be trained.
    """
    named = typed.named
    if typed.pos_file:
        print(f"running the position schemes of {typed.pos_file}")
    if compute.kind == "cpu" or typed.deterministic:
        device.repeat_to_the_bit(compute)
    with processes.first_before_others():
        corpus = training_corpus(typed)
    if typed.extend or "extend" in named:  # the folder is named after it, and may have its files
        typed = replace(typed, extend=read(typed.extend or "none").text)
    torch.manual_seed(typed.seed)
    model, earlier, read_before = first_model(typed, corpus.vocab_size)
    settings = resolve(typed, model.config, named)
    folder = run_folder(settings)
    begun = None if typed.overwrite else folder
    if typed.extend:
        model.extend(typed.extend, begun)
    check_steps(settings, model, processes)
    own = settings.mixed_lengths or (settings.block_size,)
    if settings.examine and processes.first and not (begun and checkpoint_paths(begun)):
        pos_file = Path(typed.pos_file).resolve() if typed.pos_file else None
        for warning in examine(model.config, pos_file, length=max(own), folder=begun):
            print(f"warning: {warning}")
    model = model.to(compute.device)
    lengths = [*earlier, *own]
    start = Start(settings, folder, corpus, compute, processes, model, lengths, read_before)
    with processes.first_before_others():
        open_folder(start)
    same = processes.highest(start.step) == start.step
    advice = "it must be on a disk that all share"
    require(same, f"the processes see different checkpoints in {folder}: {advice}")
    return start


def training_corpus(settings: TrainSettings) -> data.Corpus:
    """The corpus of a training; UserError, before anything is computed, if it is too short."""
    corpus = data.load(settings.dataset)
    longest = max(settings.block_size, *settings.mixed_lengths, 0)
    data.sequences(corpus.train, longest, settings.seed, 0, 1)  # refuses a corpus that is too short
    corpus.token_bytes()  # refuses a tokenizer that the test would miss
    corpus.verify()
    few = f"the validation split of {settings.dataset} has only {len(corpus.val)} tokens"
    advice = f"lower block_size = {settings.block_size} or add text"
    require(len(corpus.val) > settings.block_size, f"{few}; {advice}")
    return corpus


def first_model(typed: TrainSettings, vocab_size: int) -> tuple[GPT, list[int], dict[str, int]]:
    """The model that init_from names, the lengths it was trained at, and its `texts_read`.

    UserError if it has another vocabulary.
    """
    pos_file = Path(typed.pos_file).resolve() if typed.pos_file else None
    if typed.init_from in ("auto", "scratch"):
        return GPT(replace(typed.gpt(vocab_size), extend=""), pos_file), [], {}
    begun, read_before, kind = begun_run(typed), {}, huggingface_type(typed.init_from)
    if begun:  # its checkpoint has its weights, and the run that it began from may be gone
        settings, lengths = TrainSettings(**begun["settings"]), begun["train_lengths"]
        lengths = lengths[: -len(settings.mixed_lengths or [settings.block_size])]
        read_before = begun["read_before"]
        config = settings.gpt(begun["vocab_size"])
        model = GPT(replace(config, block_size=begun["original_length"], extend=""), pos_file)
        model.extend(settings.extend, Path(typed.out_dir))
    elif kind or (typed.init_from.startswith("gpt2") and not Path(typed.init_from).exists()):
        other = f"init_from={typed.init_from} is a Hugging Face model of type {kind}"
        require(kind in ("", "gpt2"), f"{other}; only those of type gpt2 can be loaded")
        model = load_gpt2(typed.init_from)
        lengths = [model.config.block_size]
    else:
        source = load_run(typed.init_from, pos_file=typed.pos_file)
        model, lengths = source.model.train(), source.state["train_lengths"]
        read_before = texts_read(source)
    theirs = model.config.vocab_size
    problem = f"init_from={typed.init_from} has a vocabulary of {theirs}"
    require(theirs == vocab_size, f"{problem}, not {typed.dataset}'s {vocab_size}")
    set_dropout(model, typed.dropout)
    return model, lengths, read_before


def data_order(settings: TrainSettings, train_sha256: str) -> str:
    """What sets the order in which a run reads its corpus."""
    lengths = settings.mixed_lengths or (settings.block_size,)
    return f"{train_sha256}, seed {settings.seed}, lengths {lengths}"


def first_token(settings: TrainSettings, train_sha256: str, before: dict[str, int]) -> int:
    """The token of its data order at which a run begins to read, given what was read before."""
    return 0 if settings.read_again else before.get(data_order(settings, train_sha256), 0)


def texts_read(run: Run) -> dict[str, int]:
    """How many tokens of each data order a run and those that it began from have read."""
    s, before = run.settings, run.config["read_before"]
    digest = run.config["corpus_sha256"]["train"]
    order, tokens = data_order(s, digest), first_token(s, digest, before) + run.state["tokens"]
    return before | {order: max(tokens, before.get(order, 0))}


def huggingface_type(folder: str) -> str:
    """The model_type of a folder that `transformers` has written; empty for all else."""
    path = Path(folder) / "config.json"
    config = read_json(path) if path.is_file() else {}
    return "" if "settings" in config else str(config.get("model_type", ""))


def begun_run(typed: TrainSettings) -> dict[str, Any] | None:
    """config.json of the run in out_dir, if that is to be resumed and began from the same."""
    folder = Path(typed.out_dir)
    if typed.overwrite or not typed.out_dir or not checkpoint_paths(folder):
        return None
    config = read_config(folder)
    return config if config["settings"]["init_from"] == typed.init_from else None


def load_gpt2(name: str) -> GPT:
    """GPT-2's weights; UserError if they cannot be had."""
    try:
        return GPT.from_huggingface(name)
    except (ImportError, OSError) as error:
        reason = str(error).splitlines()[0]
        problem = f"init_from={name}: the weights could not be loaded ({reason})"
        needs = "this needs `pip install transformers` and a network the first time"
        raise UserError(f"{problem}; {needs}") from error


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
    own, fresh = {}, typed.init_from in ("auto", "scratch")
    for name in ("n_layer", "n_head", "n_embd", "bias", "pos"):
        value, own[name] = getattr(typed, name), getattr(model, name)
        given = name in named or value != getattr(TrainSettings, name)
        if name == "pos" and not fresh:
            value = read(value).text
        problem = f"{name}={value} does not go with init_from={typed.init_from}"
        fits = fresh or not given or value == own[name]
        require(fits, f"{problem}, whose model has {name}={own[name]}: leave it out")
    extend = typed.extend or model.extend
    return replace(typed, **own, extend="" if extend == "none" else extend)


def check_steps(settings: TrainSettings, model: GPT, processes: Processes) -> None:
    """UserError if a step's sequences cannot be shared evenly, or their positions not drawn."""
    sequences = settings.batch_size * settings.gradient_accumulation_steps
    _, at_once = processes.share(sequences, settings.batch_size)
    for length in settings.mixed_lengths:
        tokens = f"the {at_once} x {settings.block_size} tokens that a process reads at once"
        problem = f"mixed_lengths: {tokens} are no whole number of sequences of {length}"
        whole = at_once * settings.block_size % length == 0
        require(whole, f"{problem}; raise batch_size or start fewer processes")
    for length in settings.mixed_lengths or (settings.block_size,):
        model.draw_ids(settings.seed, 0, length)


# ---- its folder


def open_folder(start: Start) -> None:
    """Take the run folder, find what was done already, and write or compare its config.json."""
    settings, folder, processes = start.settings, start.folder, start.processes
    if processes.first:
        start.lock = take_folder(folder, settings)
    model, many = start.model, f", {processes.size} processes" if processes.size > 1 else ""
    print(f"{folder}: {model.parameter_count:,} parameters; {model.pos.describe()}")
    print(f"on {start.compute.reason}{many}")
    start.state = load_state(folder)
    old = read_config(folder) if start.state else None
    first = old["history"][0]["max_iters"] if old else settings.max_iters
    start.settings = settings.warmed_up(first).checked()
    if old:
        resume(start, old)
    else:
        begin(start)
    if not processes.first:
        return
    where = {"device": start.compute.reason, "dtype": start.compute.dtype_name}
    now = provenance() | where | {"processes": processes.size}
    if old:
        note_changes(old, now)
    then = old or describe_run(start) | now | {"history": []}
    if not old or old["settings"]["max_iters"] != settings.max_iters:
        length = {name: now[name] for name in ("command", "git_commit")}
        length |= {"from_step": start.step, "max_iters": settings.max_iters}
        kind = settings.lr_schedule if settings.decay_lr else "constant"
        end = settings.lr_decay_iters or settings.max_iters
        length |= {"schedule": f"{kind} to step {end}"}
        new = {"settings": asdict(start.settings), "history": [*then["history"], length]}
        write_json(folder / "config.json", then | new)


def begin(start: Start) -> None:
    """Say what a new run begins with."""
    s, digest = start.settings, start.corpus.split_sha256("train")
    if s.init_from not in ("auto", "scratch"):
        one_order = [*start.read_before] == [data_order(s, digest)] and not s.mixed_lengths
        step = s.batch_size * s.gradient_accumulation_steps * s.block_size
        end = first_token(s, digest, start.read_before) + s.max_iters * step
        epoch = data.windows_per_epoch(len(start.corpus.train), s.block_size) * s.block_size
        new = one_order and end <= epoch and not s.read_again
        texts = f"texts that it {'has not' if new else 'may have'} read"
        print(f"init_from={s.init_from}: its weights, a new optimizer, and {texts}")
    elif s.extend:
        advice = "--init_from=out/RUN names a run to extend"
        print(f"note: {s.extend} is trained with from the start; {advice}")


def change_length(start: Start) -> None:
    """Let a run go on to another max_iters than that of its checkpoint; UserError if it cannot.

    A run whose wsd decay has begun goes back to the checkpoint before it.
    """
    s, folder, step = start.settings, start.folder, start.state["step"]
    was = start.state["settings"]["max_iters"]
    now, other = f"max_iters = {s.max_iters}", "choose another --out_dir"
    fixed = f"{folder}: a run with drop_pos or staged keeps its max_iters = {was}; {other}"
    require(not (s.drop_pos or s.staged), fixed)
    require(step <= s.max_iters, f"{folder} has taken {step} steps, and {now}; raise it or {other}")
    if s.lr_schedule == "wsd":
        step = min(step, replace(s, max_iters=was).decay_begin)
        late = f"{folder} is at step {step}, and with {now} the decay begins at {s.decay_begin}"
        require(step <= s.decay_begin, f"{late}; raise it or {other}")
    elif s.lr_schedule == "cosine" and s.decay_lr and not s.lr_decay_iters:
        mixed = f"the cosine ends at {s.max_iters} now, and for the steps so far it ended at {was}"
        print(f"note: {mixed}; a run planned for {now} would have other weights")
    if step < start.state["step"]:
        start.state = load_state(folder, last=step)
        require(start.state, f"{folder} lacks a checkpoint from before the decay; {other}")
        for path in {*checkpoint_paths(folder)} - {*checkpoint_paths(folder, step)}:
            path.unlink()
        print(f"going back to step {start.state['step']}, before the decay of the learning rate")


def resume(start: Start, config: dict[str, Any]) -> None:
    """Check that a checkpoint belongs to this run, and whether anything is left to do."""
    settings, folder = start.settings, start.folder
    refuse_other_files(folder, config, start.state)
    start.read_before = config["read_before"]
    if start.state["settings"]["max_iters"] != settings.max_iters:
        change_length(start)
    start.step = start.state["step"]
    if start.step == settings.max_iters:
        start.result = finished_result(folder, settings)
    if start.result is None:  # a finished run does not need its corpus
        changed = config["corpus_sha256"] != corpus_digests(start.corpus)
        problem = f"the corpus {settings.dataset} has changed since {folder} was begun"
        advice = "bring it back, choose another --out_dir, or --overwrite=True"
        require(not changed, f"{problem}: {advice}")
    if start.step < settings.max_iters:
        print(f"resuming at step {start.step}")


def corpus_digests(corpus: data.Corpus) -> dict[str, str]:
    """SHA-256 of both splits."""
    return {split: corpus.split_sha256(split) for split in ("train", "val")}


def describe_run(start: Start) -> dict[str, Any]:
    """What config.json says of a run, beside its provenance; the files that it needs are copied."""
    settings, folder, model = start.settings, start.folder, start.model
    pos_file = Path(settings.pos_file) if settings.pos_file else None
    if pos_file:
        copy_file(pos_file, folder / "pos_file.py")
    files = [piece.file for piece in model.pos.extensions if piece.file]
    for file in files:
        copy_file(file, folder / file.name)
    compiled = settings.compile and not device.missing_compiler()
    training_path = model.attention_path(settings.block_size, compiled=compiled)
    test_path = model.attention_path(settings.block_size)
    return {
        "settings": asdict(settings),
        "vocab_size": model.config.vocab_size,
        "unit": start.corpus.unit,
        "parameters": model.parameter_count,
        "layers": model.pos.describe(),
        "original_length": model.config.block_size,
        "train_lengths": start.train_lengths,
        "read_before": start.read_before,
        "attention": {"train": training_path, "test": test_path},
        "extension_files_sha256": {file.name: sha256(file) for file in files},
        "pos_file_sha256": sha256(pos_file) if pos_file else None,
        "corpus_sha256": corpus_digests(start.corpus),
        "wandb_id": uuid.uuid4().hex,
    }
