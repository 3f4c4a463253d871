"""A page of runs in one HTML file: tables, figures, provenance and samples, without a network."""

import base64
import functools
import html
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

import torch

from configurable import UserError
from runs import compare, figures, results
from runs.checkpoint import load_run
from runs.folder import read_config
from runs.results import Result
from runs.start import run_corpus
from runs.tables import Page, extensions_table, page, tables_of

SAMPLES, WRITTEN = 8, 200  # runs that write a sample, and how many tokens they write


def write_page(listed: Page, tested: list[Path]) -> str:
    """The text of the page: the list of all runs, then what those that are tested show.

    A corpus has one section, with the table and the figure of its runs.
    """
    title = f"longshot: {listed.title}"
    loaded = [results.load_result(folder) | {"folder": str(folder)} for folder in tested]
    datasets = dict.fromkeys(row["dataset"] for result in loaded for row in result["rows"])
    parts = [f"<h1>{html.escape(title)}</h1>", table(flat(listed)), notes(listed)]
    for dataset in datasets:
        parts += [f"<h2>{html.escape(dataset)}</h2>", *section(loaded, dataset)]
    parts += [*diagnoses(tested), *samples(tested), *provenance_of(tested)]
    frame = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return Template(frame).substitute(title=html.escape(title), body="\n".join(parts))


# ---- tables


def table(page: Page) -> str:
    """A table as HTML, `notes` apart; it can be sorted unless its lines stand in groups."""
    head, *lines = [[html.escape(cell.strip()) for cell in line] for line in page.lines]
    rows = []
    for line in lines:
        *cells, last = line
        wide = len(head) - len(cells)  # a shorter line ends in free text
        name = " class=text" if cells else " class=label"
        end = f"<td colspan={wide}{name}>{last}</td>" if wide > 1 else f"<td>{last}</td>"
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + f"{end}</tr>")
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody>"
    kind = "sortable" if page.lines[0][0] else ""
    return f'<div class=wide><table class="{kind}">{body}</table></div>'


def notes(page: Page) -> str:
    """What stands below a table."""
    text = "\n".join(filter(None, page.below))
    return f"<pre>{html.escape(text)}</pre>" if text else ""


def flat(listed: Page) -> Page:
    """The list of runs with the corpus of each in its line, so that it can be sorted."""
    lines, place = [["run", "trained on", *listed.lines[0][1:]]], ""
    for line in listed.lines[1:]:
        if len(line) == 1:
            place = line[0]
        else:
            lines.append([line[0], place, *line[1:]])
    return page(listed.title, lines, *listed.below)


# ---- sections


def section(loaded: list[Result], dataset: str) -> Iterator[str]:
    """Tables and figures of the runs that were tested on a corpus, and of their extensions."""
    here = [result for result in loaded if results.rows_of([result], dataset)[0]]
    try:
        pages = tables_of(here, dataset) if here else []
    except UserError as error:  # results that do not compare
        yield f"<p>{html.escape(str(error))}</p>"
        pages, here = [each for one in here for each in tables_of([one], dataset)], here[:1]
    if here:
        name = f"Curves of all schemes tested on {dataset}, by the length of the text"
        yield drawn(lambda path: figures.plot_seeds(compare.schemes_of(here), path, dataset), name)
    for each in pages:
        yield f"<h3>{html.escape(each.title)}</h3>{table(each)}{notes(each)}"
    for seeds in compare.schemes_of(loaded).values():
        rows = [row for result in seeds for row in result["rows"] if row["dataset"] == dataset]
        with suppress(UserError):  # nothing of fixed_targets is there
            if len({row["extend"] for row in rows}) > 1:
                gains = extensions_table(seeds, [], dataset)
                yield f"<h3>extensions: {html.escape(gains.title)}</h3>"
                draw = functools.partial(figures.plot_extensions, seeds, [], dataset=dataset)
                yield drawn(draw, f"Gains of extensions, {gains.title}")
                yield table(gains) + notes(gains)


def drawn(draw: Callable[[str], object], name: str) -> str:
    """The figure that draw(path) writes, inside the page; empty if it writes none. For `name` see
    `image`.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "figure.svg")
        draw(str(path))
        return image(path, "svg+xml", name) if path.exists() else ""


def image(path: Path, kind: str, name: str) -> str:
    """A file as an image inside the page; `name` is for those who cannot see it."""
    content = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<p><img alt="{html.escape(name)}" src="data:image/{kind};base64,{content}"></p>'


def diagnoses(folders: list[Path]) -> Iterator[str]:
    """What `evaluate.py --diagnose` has drawn: attention by distance and the rest."""
    for folder in folders:
        if (folder / "diagnose.png").exists():
            name = f"Diagnosis of {folder}"
            yield f"<h2>{html.escape(name)}</h2>{image(folder / 'diagnose.png', 'png', name)}"


def samples(folders: list[Path]) -> Iterator[str]:
    """A text of each of the first SAMPLES runs that can be loaded, temperature 0.8."""
    for number, folder in enumerate(folders[:SAMPLES]):
        try:
            run = load_run(folder)
            corpus = run_corpus(run)
        except UserError:  # no checkpoint, or a scheme of a user's file, which is not run here
            continue
        start, random = torch.tensor([[int(corpus.val[0])]]), torch.Generator().manual_seed(1337)
        text = run.model.generate(start, WRITTEN, temperature=0.8, generator=random)
        yield "" if number else "<h2>Samples</h2>"
        yield folded(folder, corpus.tokenizer.decode(text[0].tolist()))


def provenance_of(folders: list[Path]) -> Iterator[str]:
    """Where each run comes from: command, commit, device, versions, digests, settings."""
    yield "<h2>Where the runs come from</h2>"
    for folder in folders:
        try:
            config = read_config(folder) | {"sources_sha256": "in config.json"}
            yield folded(folder, json.dumps(config, indent=1))
        except UserError as error:
            yield folded(folder, str(error))


def folded(folder: Path, text: str) -> str:
    """A text of a run that is shown when its name is touched."""
    name, text = html.escape(str(folder)), html.escape(text)
    return f"<details><summary>{name}</summary><pre>{text}</pre></details>"
