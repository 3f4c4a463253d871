"""What tests write down: a Record for each measurement, a Result for each run.

A field is one line here. extrapolation.json, tables in CSV and the DataFrame have all of them.
"""

from dataclasses import dataclass, field

from pydantic import TypeAdapter

Number = float | None  # None: there is none
Count = int | None
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
    step: Count = None  # steps that the weights were trained
    checkpoint: str = ""  # the first digits of the SHA-256 of the weights
    dtype: str = ""  # the number format
    targets: str = ""  # the SHA-256 of the offsets that are scored
    attention: str = ""  # the path that attention took


@dataclass(eq=False)
class Record(Question):
    """One measurement. Two are equal if their questions are: then the newer one counts."""

    factor: Number = None  # of the extension at this length
    tokens_trained: Count = None
    windows: Count = None  # blocks: places, chunks of a text, or texts with answers
    first_token: Count = None  # at the start of every window, in place of the text's
    trained_size: Count = None  # of texts with answers: the largest in training
    tokens_per_s: Number = None  # inputs a second
    note: str = ""  # what to know about the numbers
    reason: str = ""  # why there is no loss
    diverged: bool = False  # the loss is not finite
    # the loss
    nats: Number = None  # per target, the mean; None: see reason
    stderr: Number = None  # its standard error, nats
    stderr_vs_L: Number = None  # that of the paired difference to length L, nats
    block_nats: list | None = None  # the mean of each block; see answers.fill_loss
    tokens: Count = None  # the number of targets
    perplexity: Number = None
    bits_per_byte: Number = None  # of the targets that stand for text
    without_bytes: Count = None  # the number of targets that do not
    documents: Count = None  # blocks of the text around questions
    # answers
    texts: Count = None
    exact: Count = None  # texts without a mistake
    accuracy: Number = None  # the share of answers that are right
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
    first_length: Count = None  # tokens, the length that it was first trained at
    scheme_files: str = ""  # what defined its scheme when training began: file:first digits of SHA
    step: Count = None  # steps taken
    checkpoint: str = ""  # the first digits of the SHA-256 of the weights
    tokens_trained: Count = None
    parameters: Count = None
    unit: str = ""  # of a token of the corpus: byte, char or token
    seconds: Number = None  # that the last test took
    records: list[Record] = field(default_factory=list)  # the oldest first


def read_result(content: dict) -> Result:
    """The Result in a JSON object, without what older versions wrote besides. ValueError, TypeError
    or KeyError if there is none.
    """
    content = renamed(content)
    content["records"] = [renamed(record) for record in content["records"]]
    return TypeAdapter(Result).validate_python(content)


def renamed(content: dict) -> dict:
    """A JSON object with the names that fields have today."""
    return {OLD_NAMES.get(name, name): value for name, value in content.items()}
