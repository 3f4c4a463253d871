"""Runs that are loaded: from a folder, or from a model of Hugging Face."""

import hashlib
import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch

from common.device import Compute, pick
from common.errors import UserError
from common.files import mixed_seed
from configurable import (
    RESULT,
    GPTConfig,
    MeasureSettings,
    TrainSettings,
    setting_values,
)
from data import batches
from data.corpus import OF_TOKENS, Corpus, load_corpus
from data.download import model_folder
from measure.protocols import check_lengths
from model import GPT
from run.checkpoint import save_checkpoint
from run.folder import RunFolder, SavedSettings, corpus_digests, kept_settings
from run.huggingface import check_tokenizer, is_huggingface, load_model
from scheme import OWN_FILE
from tables.records import Result

# ---- a run in memory


@dataclass
class Run:
    """A model, the settings that it is trained with, and its folder.

    `settings` are final: the scheme in canonical form, the size that of the model. `config` is the
    content of config.json. `step` is the number of steps taken, `digest` that in the name
    of the file that the weights come from, `saved` the content of that file if training resumes.
    `first_token` begins every window in a test of a pretrained model whose tokenizer adds one.
    `files` is the folder of the files that options of its extension name, if it was loaded.
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
    files: Path | None = None

    def __repr__(self) -> str:
        s = self.settings
        return (
            f"Run {self.folder}, step {self.step} of {s.max_iters}\n"
            f"{self.model.parameter_count:,} parameters; {self.model.pos.describe()}\n"
            f"trained on {s.dataset} at L = {s.block_size}"
        )

    @property
    def tokens(self) -> int:
        """The number of tokens trained on so far, without the padding of an average step."""
        share = 1 - self.config.get("padding", 0)
        return round(self.step * self.settings.tokens_per_step * share)

    @property
    def data_seed(self) -> int:
        """The seed of the order of its data; each fine-tune of a chain has its own."""
        trainings = len(self.config["train_lengths"])
        return self.settings.seed if trainings == 1 else mixed_seed(self.settings.seed, trainings)

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus that it is trained on; UserError if its vocabulary has changed since."""
        corpus = load_corpus(self.settings.dataset)
        if not corpus.fits(self.model.config.vocab_size):
            raise UserError(
                f"{corpus.name} has {corpus.vocab_size} tokens, the model of {self.folder} "
                f"{self.model.config.vocab_size}: make that corpus again as it was"
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
            "settings": kept_settings(self.settings),
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
    state = opened.checkpoint()
    if state is None:
        raise UserError(f"{folder} holds no checkpoint yet: train it first")
    for name in opened.changed_code():
        print(f"note: {name} has changed since {folder} was trained", file=sys.stderr)
    compute = pick(device, opened.kept_dtype(dtype))
    model = GPT(GPTConfig(**state["gpt"]), pos_file, folder)
    model.load_state_dict(state["model"])
    model = compute.place(model).eval()
    settings = SavedSettings(**config["settings"])
    step = state["step"]
    return Run(folder, settings, model, compute, config, step, state["digest"], files=folder)


def open_model(
    name: str, settings: MeasureSettings | TrainSettings, first_token: bool = False
) -> Run:
    """Load a model to test by its name on the command line: a run folder, or a Hugging Face folder
    or name. Of `settings`, device, dtype, dataset and pos_file are used.

    With `first_token`, windows will begin with the token that its tokenizer puts first, if any.
    """
    if not is_huggingface(name):
        return load_run(name, settings.device, settings.dtype, settings.pos_file)
    if not settings.dataset:
        raise UserError(
            f"{name} is a Hugging Face model: name a corpus of its tokens by --dataset; make one "
            f"with python data/text/prepare.py --name=NAME PATH... --tokenizer={name}"
        )
    first = check_tokenizer(name, load_corpus(settings.dataset))
    if not first_token:
        first = None
    model = load_model(name)
    # another length, window or base is another model, whose tests are not those of this one
    files = model_folder(name)
    digest = hashlib.sha256((files / "config.json").read_bytes())
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
    return Run(folder, s, model, compute, config, digest=checkpoint, first_token=first, files=files)


def check_tokens(run: Run, corpus: Corpus) -> None:
    """Raise UserError for a corpus of other tokens than those that a run was trained on, as far as
    its own corpus is still here.
    """
    own = None
    with suppress(UserError):
        own = run.corpus
    for key in OF_TOKENS:
        if own and corpus.meta.get(key) != own.meta.get(key):
            raise UserError(
                f"{corpus.name} has another tokenizer than {own.name}, which {run.folder} was "
                "trained on: prepare its text with the same --tokenizer"
            )
    if not corpus.fits(run.model.config.vocab_size):
        raise UserError(
            f"{corpus.name} has {corpus.vocab_size} tokens, the model of {run.folder} "
            f"{run.model.config.vocab_size}"
        )


def run_corpus(run: Run, dataset: str = "") -> Corpus:
    """The corpus to test a run on, by default its own; UserError if it has another tokenizer."""
    own = run.corpus
    corpus = load_corpus(dataset or own.name)
    corpus.verify("val")
    digests = run.config.get("corpus_sha256")  # a Hugging Face model has none
    if corpus.name == own.name and digests not in (None, corpus_digests(corpus)):
        raise UserError(
            f"{corpus.name} has changed since {run.folder} was trained on it: make it as it was, "
            "or give the new text another name"
        )
    check_tokens(run, corpus)
    return corpus


# ---- a run to train


def model_digest(run: Run) -> str:
    """16 digits that are the same for all seeds of a model, others for other settings, steps or
    texts; of a Hugging Face model those of its weights.
    """
    config = run.config
    if "corpus_sha256" not in config:  # a Hugging Face model
        return run.digest
    about = kept_settings(run.settings)
    del about["seed"]
    source = about.pop("init_from")  # whose name differs between seeds
    about["source"] = config.get("source_model", source)  # older fine-tunes have the name alone
    about["step"] = run.step
    if run.settings.follows_max_iters:
        about["max_iters"] = run.settings.max_iters
    for key in ("corpus_sha256", "files_sha256", "max_iters_before"):
        about[key] = config.get(key)
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def training_corpus(settings: TrainSettings) -> Corpus:
    """The corpus to train on; UserError, before anything is computed, if it is too short for the
    training or for the tests after it.
    """
    corpus = load_corpus(settings.dataset)
    length = settings.block_size
    batches.check_rows(corpus, length, settings.documents)
    for name, tokens in (("training", corpus.train), ("validation", corpus.val)):
        if len(tokens) <= length:
            raise UserError(
                f"the {name} split of {corpus.name} has only {len(tokens)} tokens; "
                f"lower block_size = {length} or add text"
            )
    corpus.tokenizer.decode([])  # fails now, rather than in the test, if there is no tokenizer
    corpus.verify()
    check_lengths(corpus, settings.eval_windows, [length, *settings.eval_lengths])
    return corpus


def describe_run(run: Run) -> Result:
    """What a Result says of a run, with the extension that is active now."""
    s = run.settings
    config = run.model.config
    files = run.config.get("files_sha256", {})  # a Hugging Face model has none
    is_dropped = s.drop_pos > 0 and config.pos == "nope"
    return Result(
        pos=f"{s.pos} (dropped)" if is_dropped else s.pos,
        seed=s.seed,
        block_size=s.block_size,
        max_iters=s.max_iters,
        settings=setting_values(s, *RESULT),
        extend=run.model.pos.extend_text,
        first_length=config.first_length,
        scheme_files=" ".join(f"{name}:{files[name][:6]}" for name in sorted(files)),
        step=run.step,
        checkpoint=run.digest[:16],
        tokens_trained=run.tokens,
        parameters=run.model.parameter_count,
        planned_before=run.config.get("max_iters_before") if s.follows_max_iters else None,
        train_sha256=run.config.get("corpus_sha256", {}).get("train", "")[:16],
        source_model=run.config.get("source_model", ""),
    )
