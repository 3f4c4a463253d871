"""What tests write down: a Record for each measurement, a Result for each run.

A field is one line here. extrapolation.json, tables in CSV and the DataFrame have all of them.
"""

from dataclasses import dataclass, field, fields
from typing import Any

# the names of fields in older files, which are still read
OLD_NAMES = {
    "train_length": "block_size",
    "original_length": "first_length",
    "trained": "trained_size",
    "rows": "records",
}


@dataclass
class Question:
    """What is asked in a measurement."""

    protocol: str
    length: int  # of a test, in inputs; of corpora with sizes, the size
    dataset: str = ""  # the corpus
    split_sha256: str = ""  # of its validation split
    extend: str = ""  # the extension, "" for none
    files_sha256: dict | None = None  # {file: SHA-256} of what defines the extension
    step: int | None = None  # steps that the weights were trained
    checkpoint: str = ""  # the first digits of the SHA-256 of the weights
    dtype: str = ""  # the number format
    targets: str = ""  # the SHA-256 of the offsets that are scored
    attention: str = ""  # the path that attention took


@dataclass(eq=False)
class Record(Question):
    """One measurement. Two are equal if their questions are: then the newer one counts."""

    factor: float | None = None  # of the extension at this length
    tokens_trained: int | None = None
    windows: int | None = None  # blocks: places, chunks of a text, or texts with answers
    first_token: int | None = None  # at the start of every window, in place of the text's
    trained_size: int | None = None  # of texts with answers: the largest in training
    tokens_per_s: float | None = None  # inputs a second
    note: str = ""  # what to know about the numbers
    reason: str = ""  # why there is no loss
    diverged: bool = False  # the loss is not finite
    # the loss
    nats: float | None = None  # per target, the mean; None: see reason
    stderr: float | None = None  # its standard error, nats
    stderr_vs_L: float | None = None  # that of the paired difference to length L, nats
    block_nats: list | None = None  # the mean of each block; see answers.fill_loss
    tokens: int | None = None  # the number of targets
    perplexity: float | None = None
    bits_per_byte: float | None = None  # of the targets that stand for text
    without_bytes: int | None = None  # the number of targets that do not
    documents: int | None = None  # blocks of the text around questions
    # answers
    texts: int | None = None
    exact: int | None = None  # texts without a mistake
    accuracy: float | None = None  # the share of answers that are right
    by_distance: dict | None = None  # {kind of question: bins}; see answers.count_answers


@dataclass
class Result:
    """A tested run: the content of its extrapolation.json."""

    pos: str
    seed: int
    block_size: int  # tokens, the length of this training
    max_iters: int  # planned steps
    settings: dict  # those that change the result
    extend: str = ""  # the extension that it was trained with, "" for none
    first_length: int | None = None  # tokens, the length that it was first trained at
    scheme_files: str = ""  # what defined its scheme when training began: file:first digits of SHA
    step: int | None = None  # steps taken
    checkpoint: str = ""  # the first digits of the SHA-256 of the weights
    tokens_trained: int | None = None
    parameters: int | None = None
    unit: str = ""  # of a token of the corpus: byte, char or token
    seconds: float | None = None  # that the last test took
    records: list = field(default_factory=list)  # of Record, the oldest first


def read_result(content: dict) -> Result:
    """The Result in a JSON object. TypeError if it is none."""
    result = known_fields(Result, content)
    result.records = [known_fields(Record, record) for record in result.records]
    return result


def known_fields(cls: type, content: dict) -> Any:
    """A Record or Result of a JSON object, without what older versions had besides."""
    values = {OLD_NAMES.get(name, name): value for name, value in content.items()}
    known = {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
    return cls(**known)
