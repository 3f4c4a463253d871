"""The test of a model on longer texts: every protocol of its corpus at every length."""

import time
from collections.abc import Sequence
from dataclasses import replace

from measure.protocols import of_text
from measure.questions import answer_records, question_records
from measure.tester import Tester
from measure.text import text_records
from tables import statistics
from tables.records import Result


def extrapolation(
    tester: Tester,
    about: Result,
    lengths: Sequence[int],
    windows: int,
    names: Sequence[str] = (),
) -> Result:
    """Test a model by every protocol at every length, and print a line for each record.

    `about` is from `describe_run`, `lengths` and `windows` are as in the settings, `names` are
    those of protocols of text, by default all. The model is put into eval mode.
    """
    corpus = tester.corpus
    started = time.perf_counter()
    tester.model.eval()
    if "rows" in corpus.meta:
        measured = answer_records(tester, about, lengths)
    elif "questions" in corpus.meta:
        measured = question_records(tester, about, lengths, windows)
    else:
        measured = text_records(tester, about, lengths, windows, of_text(names))
    records = []
    for record in measured:
        text = record.reason or f"{record.nats:.4f} nats per {corpus.unit}"
        print(f"{record.protocol} at {record.length}: {text}")
        records.append(record)
    at_L = {record.protocol: record for record in records if record.length == about.block_size}
    for record in records:
        if record.protocol in at_L:
            difference = statistics.paired(record, at_L[record.protocol])
            if difference:
                record.stderr_vs_L = difference[1]
    seconds = round(time.perf_counter() - started, 1)
    return replace(about, unit=corpus.unit, records=records, seconds=seconds)
