"""The page of runs: report.py --html."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from test_report import listed, make_run, result  # noqa: F401  (a fixture)

from runs import webpage
from runs.results import update_result
from runs.tables import page


class Tags(HTMLParser):
    """Checks that tags are closed in order; keeps their names, links and texts."""

    VOID = ("meta", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.names, self.links, self.said = [], [], [], []
        self.feed(text)
        assert self.open in ([], ["html"])

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.said.append(text)


def test_a_page_is_one_file_of_whole_tags_with_tables_figures_and_provenance(listed):  # noqa: F811
    for seed in (1, 2):
        make_run(Path(f"out/rope{seed}"), pos="rope", seed=seed)
    make_run(Path("out/nope"), pos="nope")
    make_run(Path("out/alibi"), steps=600, tested=False)
    assert "4 runs in page.html" in listed("out", "--html=page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    tags = Tags(text)
    assert all(link.startswith("data:image/") for link in tags.links) and tags.links
    assert "http" not in re.sub(r"data:image/[^\"]*", "", text)  # nothing is asked of a network
    assert 'alt="Curves of all schemes tested on ' in text and 'alt=""' not in text
    said = "".join(tags.said)
    assert "unfinished" in said and "out/rope2" in said and "1.4900" in said
    assert '"command"' in said and "in config.json" in said
    assert tags.names.count("table") >= 3 and tags.names.count("details") == 3


def test_a_damaged_run_is_named_and_left_out(listed, capsys):  # noqa: F811
    make_run(Path("out/good"))
    for name in ("cut", "lost"):
        make_run(Path(f"out/{name}"))
    result_of_cut = Path("out/cut/extrapolation.json")
    result_of_cut.write_text(result_of_cut.read_text(encoding="utf-8")[:200], encoding="utf-8")
    Path("out/lost/config.json").unlink()
    listed("out", "--html=page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    assert "out/good" in text and "not readable JSON" in text and "out/lost is half made" in text
    assert "out/lost/config.json is missing" in text
    rows = listed("out", "--format=csv")
    assert "out/good" in rows and "out/cut" not in rows


def test_rows_of_the_list_have_the_cells_of_its_head(listed):  # noqa: F811
    make_run(Path("out/a"))
    make_run(Path("out/b"), block_size=64)
    listed("out", "--html=page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    own, *others = re.findall(r'<table class="sortable">.*?</table>', text, re.S)
    assert {re.search("<th>(.*?)</th>", other)[1] for other in others} == {"scheme"}
    rows = re.findall(r"<tr>(.*?)</tr>", own)
    assert len(rows) == 3 and "trained at L = 64" in own
    wide = [sum(map(int, re.findall(r"colspan=(\d+)", row) or [1])) - 1 for row in rows]
    counts = [len(re.findall("<t[hd]", r)) + max(0, w) for r, w in zip(rows, wide, strict=True)]
    assert len(set(counts)) == 1


def test_what_a_table_holds_is_text_and_never_code():
    text = webpage.table(page("", [["", "<b>"], ["<script>"], ["a & b", "1 < 2"]]))
    assert "<script>" not in text and "<b>" not in text
    assert "&lt;script&gt;" in text and "a &amp; b" in text


def test_results_that_do_not_compare_are_shown_one_by_one(tmp_path):
    for name, one in {"a": result(), "b": result("rope", targets="others")}.items():
        (tmp_path / name).mkdir()
        update_result(tmp_path / name, one)
    loaded = [json.loads((tmp_path / n / "extrapolation.json").read_text()) for n in "ab"]
    parts = "".join(webpage.section([r | {"folder": r["pos"]} for r in loaded], "toy"))
    assert "were tested on different targets" in parts
    assert parts.count("trained at L = 128; nats per byte") == 2


def test_a_diagnosis_is_shown_where_there_is_one(tmp_path):
    assert list(webpage.diagnoses([tmp_path])) == []
    (tmp_path / "diagnose.png").write_bytes(b"\x89PNG")
    assert "data:image/png;base64," in "".join(webpage.diagnoses([tmp_path]))
