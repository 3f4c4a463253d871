"""The test of a model on longer texts: every protocol of its corpus at every length."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from measure.protocols import Protocol, of_text, tested_lengths
from measure.questions import answer_records, question_records
from measure.tester import Tester, new_record
from measure.text import text_records
from tables import statistics
from tables.records import Record, Result, load_result, update_result


def run_tests(
    tester: Tester,
    about: Result,
    folder: Path,
    lengths: Sequence[int],
    windows: int,
    names: Sequence[str] = (),
    only_missing: bool = False,
) -> Result:
    """Test a model as `extrapolation` does, and add the records to the extrapolation.json in
    `folder` after each protocol of text: a test that is stopped keeps those that were finished.

    With `only_missing`, a protocol is left out if its newest records, which tables show, have all
    that is asked. Returns the new records.
    """
    measured = newest(records_in(folder))  # refused before the test if damaged
    new = replace(about, unit=tester.corpus.unit, seconds=0.0)
    # what is tested and written together: a protocol of text, or the answers of another corpus
    for protocol in of_text(names) if tester.corpus.is_text else [None]:
        if protocol and only_missing:
            missing = not is_measured(tester, about, measured, protocol, lengths, windows)
            if not tester.processes.highest(missing):  # all processes test the same
                continue
        part = [protocol.name] if protocol else []
        result = extrapolation(tester, about, lengths, windows, part)
        seconds = round(new.seconds + result.seconds, 1)
        new = replace(new, records=new.records + result.records, seconds=seconds)
        if tester.processes.is_master:
            update_result(folder, new)
    return new


def records_in(folder: Path) -> list[Record]:
    """The records of a run folder; none before its first test."""
    return load_result(folder).records if (folder / "extrapolation.json").exists() else []


def newest(records: list[Record]) -> list[Record]:
    """Of each protocol, length, corpus, extension and checkpoint the newest record."""
    by_test = {(x.protocol, x.length, x.dataset, x.extend, x.checkpoint): x for x in records}
    return [*by_test.values()]


def is_measured(
    tester: Tester,
    about: Result,
    records: list[Record],
    protocol: Protocol,
    lengths: Sequence[int],
    windows: int,
) -> bool:
    """Whether a protocol is among these records at every length, with as many windows."""
    known = [
        replace(record, targets="", attention="")  # not known before a test
        for record in records
        if record.windows == windows or not protocol.in_places
    ]
    tested = tested_lengths(about.block_size, lengths)
    return all(new_record(tester, about, protocol.name, n, windows) in known for n in tested)


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
    if corpus.has_sizes:
        measured = answer_records(tester, about, lengths)
    elif corpus.has_questions:
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
