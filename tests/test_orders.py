"""Which orders of two schemes hold from one board to a larger one (tools/orders.py)."""

import sys

import numpy as np
import pandas as pd
import pytest
from conftest import REPOSITORY
from scipy import stats

from common.errors import UserError
from tables import reach, tables
from tables.records import load_rows, save_rows
from tools import board, orders

FOUR = ["rope", "alibi", "nope", "fox"]


@pytest.fixture(scope="module")
def rows():
    """Of four schemes of the board, seeds 3 to 5."""
    rows = load_rows(REPOSITORY / "results/board/rows.csv.xz")
    return rows[rows.label.isin(FOUR) & (rows.seed <= 5)]


@pytest.fixture(scope="module")
def small(rows):
    return orders.measure(rows)


@pytest.mark.parametrize(
    "small, large, name",
    [(1, 1, "holds"), (-1, 1, "turns"), (0, -1, "opens"), (1, 0, "closes"), (0, 0, "")],
)
def test_what_becomes_of_an_order(small, large, name):
    assert orders.outcome(small, large) == name


def test_L_is_that_of_training_whatever_else_is_tested(rows, small):
    half = rows[rows.length == 128].assign(length=64, nats=9.0)
    longer = orders.measure(pd.concat([half, rows]))
    assert longer.L.to_list() == small.L.to_list()
    assert longer.inside_content.to_list() == small.inside_content.to_list()
    mixed = rows.assign(first_length=rows.seed.map({3: 64}).fillna(128))
    with pytest.raises(UserError, match="a board has one L"):
        orders.measure(mixed)


def test_what_was_tested_twice_counts_once_as_it_was_last(rows, small):
    twice = pd.concat([rows.assign(nats=9.0), rows])
    pd.testing.assert_frame_equal(orders.measure(twice), small)


def test_a_scheme_of_which_a_seed_diverged_has_no_mean_of_the_others(small):
    broken = small.copy()
    broken.loc[(small.label == "rope") & (small.seed == 5), ["text", "content", "order"]] = np.nan
    assert "rope" in board.first_five(small).replace("nope", "")
    rises = [line.split("|")[1] for line in board.first_five(broken).splitlines()[2:]]
    assert not any(cell.startswith(" rope") for cell in rises) and any("fox" in r for r in rises)
    [line] = [x for x in board.show(broken, "fox").splitlines() if x.startswith("| rope | 3 ")]
    assert "diverged in 1 of 3" in line


def test_a_board_keeps_its_own_orders(small):
    found = orders.orders(small, small)
    assert set(found.order) == {"holds", ""} and len(found) == 6 * 4
    table = orders.verdicts(found, small, small).set_index("number")
    assert (table.tau == "1.00").all()
    # three seeds decide no pair in content
    assert table["rank"].to_list() == ["trusted", "trusted", "undecided", "trusted"]


def test_exchanged_schemes_turn_their_orders(small):
    swapped = small.assign(label=small.label.replace({"rope": "fox", "fox": "rope"}))
    found = orders.orders(small, swapped).set_index(["number", "first - second"])
    # fox is 3 nats lower than rope at 32 L; what is left is the order of the others
    assert found.order["32 L", "rope, fox"] == "turns"
    assert found.order["32 L", "alibi, nope"] == "holds"
    verdicts = orders.verdicts(found.reset_index(), small, swapped).set_index("number")
    assert verdicts["rank"]["32 L"] == "not trusted"


def test_an_interval_holds_seeds_and_books_by_hand(rows, small):
    """The difference of alibi and nope at L, from the rows alone."""
    at_L = rows[(rows.length == 128) & (rows.protocol == "fixed_targets")]
    at_L = at_L[at_L.step == at_L.max_iters].set_index(["label", "seed"])
    nats = np.subtract(at_L.nats["alibi"].to_list(), at_L.nats["nope"].to_list())
    books = np.mean(
        [np.subtract(at_L.block_nats["alibi", s], at_L.block_nats["nope", s]) for s in (3, 4, 5)], 0
    )
    of_seeds, of_books = nats.var(ddof=1) / 3, books.var(ddof=1) / len(books)
    freedom = (of_seeds + of_books) ** 2 / (of_seeds**2 / 2 + of_books**2 / (len(books) - 1))
    half = max(
        stats.t.ppf(0.975, freedom) * np.sqrt(of_seeds + of_books),
        stats.t.ppf(0.975, 2) * np.sqrt(of_seeds),
    )
    sign, text, values = orders.compare(small, "alibi", "nope", "L")
    assert sign == 1 and text == f"{nats.mean():.3f} ± {half:.3f}"
    assert values.to_list() == pytest.approx(nats)
    # one seed, with the spread of all: an error that is larger by the root of three or more
    one = small[small.seed == 3]
    _, text, _ = orders.compare(one, "alibi", "nope", "L", of_one_seed=values)
    assert float(text.split(" ± ")[1]) >= stats.t.ppf(0.975, 2) * nats.std(ddof=1) - 1e-3
    assert orders.compare(one, "alibi", "nope", "L")[:2] == (0, f"{nats[0]:.3f}, spread unknown")


def test_only_seeds_of_both_that_read_it_are_compared(small):
    """Two seeds are two, whatever else is in the table; a scheme that reads no long text is told."""
    two = small[small.seed < 5]
    wanted = orders.compare(two, "rope", "fox", "32 L")[:2]
    shorter = small.copy()
    of_rope = (small.label == "rope") & (small.seed == 5)
    shorter.loc[of_rope, "32 L"] = np.nan
    shorter.loc[of_rope, "32 L books"] = None
    assert orders.compare(shorter, "rope", "fox", "32 L")[:2] == wanted
    assert orders.compare(small[~of_rope], "rope", "fox", "32 L")[:2] == wanted
    shorter.loc[small.label == "rope", "32 L"] = np.nan
    assert orders.compare(shorter, "rope", "fox", "32 L")[:2] == (0, "cannot read it")
    apart = small[(small.label == "rope") == (small.seed == 3)]
    assert orders.compare(apart, "rope", "fox", "L")[:2] == (0, "no seed in common")
    # fox alone has one seed on the larger board: the spread is that of the smaller one
    large = small[(small.label != "fox") | (small.seed == 3)]
    found = orders.orders(small, large).set_index(["number", "first - second"])
    assert found.order["32 L", "rope, fox"] == "holds" and "±" in found.large["32 L", "rope, fox"]
    # areas of what was not learned give no spread
    unlearned = small.assign(inside_order=0.0)
    found = orders.orders(unlearned, small[small.seed == 3]).set_index(["number", "first - second"])
    assert found.order["order", "alibi, fox"] == ""
    assert found.large["order", "alibi, fox"].endswith("spread unknown")


def test_what_some_seeds_have_not_learned_is_no_order(small):
    """nope knows no order in any seed, and alibi in all; a kind learned by one seed is no order."""
    assert orders.compare(small, "alibi", "nope", "order")[:2] == (1, "first learned")
    assert orders.compare(small, "nope", "alibi", "order")[:2] == (-1, "second learned")
    partly = small.assign(inside_order=small.inside_order.where(small.seed == 3, 0.0))
    assert orders.compare(partly, "alibi", "nope", "order")[:2] == (0, "in some seeds")
    none = small.assign(inside_order=0.0)
    assert orders.compare(none, "alibi", "nope", "order")[:2] == (0, "neither learned")
    assert orders.ranks(partly, "order").nunique() == 1


def test_the_page_of_small_screens_has_the_tables_of_its_rows():
    folder = REPOSITORY / "results/claims-2026"
    small, large = (orders.measure(load_rows(folder / f"{n}x.csv.xz")) for n in (1, 3))
    found = orders.orders(small, large)
    page = (folder / "inversion.md").read_text(encoding="utf-8")
    for table in (found, orders.verdicts(found, small, large)):
        assert tables.show("", table, format="md").strip() in page
    ten = orders.measure(load_rows(folder / "10x.csv.xz"))  # of one seed
    found = orders.orders(small, ten)
    for table in (found, orders.verdicts(found, small, ten)):
        assert tables.show("", table, format="md").strip() in page
    assert "| content | nope, rope | 3.469 ± 0.404 | -1.197 ± 0.700 | turns |" in page
    for numbers in (small, large, ten):
        assert board.show(numbers, "rope").split("\n\n")[0] in page
    # the differences of the other page, which has nope + canon first
    convolution = (folder / "convolution.md").read_text(encoding="utf-8")
    places = orders.measure(load_rows(folder / "canon.csv.xz"))
    assert board.show(places, "nope + smear").split("\n\n")[0] in convolution
    both = pd.concat([small, places])
    for label in ("alibi + canon", "nope + smear"):
        for name in orders.TEXTS:
            assert orders.compare(both, label, "nope + canon", name)[1] in convolution
    for numbers, of_one_seed in ((small, None), (large, small)):
        for other in ("rope", "rope + canon"):
            for name in orders.TEXTS:
                spread = None
                if of_one_seed is not None:
                    spread = orders.compare(of_one_seed, "nope + canon", other, name)[2]
                text = orders.compare(numbers, "nope + canon", other, name, spread)[1]
                assert f"| {text}, " in convolution


@pytest.mark.parametrize("name, base", [("xsa", "rope"), ("key_offset", "rope(fraction=0.5)")])
def test_the_page_of_short_questions_has_the_tables_of_its_rows(name, base):
    folder = REPOSITORY / "results/claims-2026"
    numbers = orders.measure(load_rows(folder / f"{name}.csv.xz"))
    page = (folder / "short.md").read_text(encoding="utf-8")
    assert board.show(numbers, base).split("\n\n")[0] in page
    assert tables.show("", orders.differences_of(numbers), format="md").strip() in page


def test_the_page_of_needles_has_the_table_of_its_rows():
    folder = REPOSITORY / "results/claims-2026"
    rows = load_rows(folder / "needles.csv.xz")
    page = (folder / "needles.md").read_text(encoding="utf-8")
    table = rows.pivot_table(values="accuracy", index=["label", "seed"], columns="length")
    for (label, seed), line in table.iterrows():
        run = rows[(rows.label == label) & (rows.seed == seed)]
        by_depth = reach.table(reach.answered(run)).xs(1024, level="N").iloc[0].dropna()
        for shares in (line, by_depth):
            cells = [label, str(seed), *(f"{share:z.2f}" for share in shares)]
            assert f"| {' | '.join(cells)} |" in page


def test_the_program(rows, tmp_path, monkeypatch, capsys):
    for name, part in {"all": rows, "one": rows[rows.seed == 3]}.items():
        save_rows(part, tmp_path / f"{name}.csv.xz")
    save_rows(rows.assign(label=rows.label + " 10.7M"), tmp_path / "other.csv.xz")
    save_rows(rows[rows.length < 4096], tmp_path / "short.csv.xz")
    save_rows(rows[(rows.label != "fox") | (rows.length > 128)], tmp_path / "beyond.csv.xz")
    save_rows(load_rows(REPOSITORY / "results/seven/rows.csv.xz"), tmp_path / "seven.csv.xz")

    def run(*names):
        words = [w if w.startswith("--") else f"{tmp_path}/{w}.csv.xz" for w in names]
        monkeypatch.setattr(sys, "argv", ["orders", *words])
        orders.main()
        return capsys.readouterr().out

    text = run("all", "one")
    assert "| 32 L | 6 | " in text and "| order | alibi, nope | first learned |" in text
    text = run("all")
    assert "| 32 L | rope, alibi | 2.9" in text and " | alibi |\n" in text
    assert "| content | rope, alibi | " in text and "| not decided |" in text
    assert "spread unknown" in run("one", "all")
    save_rows(rows[rows.length < 2048], tmp_path / "eight.csv.xz")
    text = run("eight")
    assert "| 8 L | rope, alibi | " in text and "32 L" not in text
    on_the_way = run("all", "--step=600")  # two of the four were tested there, with one seed
    assert "| L | rope, alibi | -0.006, spread unknown |" in on_the_way and "nope" not in on_the_way
    for names, reason in {
        ("all", "--step=700"): "no row is of step 700: there are 600, 1200, 2400",
        ("all", "other"): "share no two schemes",
        ("all", "short"): "same training and longest test length",
        ("beyond",): "tested at L",
        ("seven",): "rows of finished runs on books_recall",
    }.items():
        with pytest.raises(UserError, match=reason):
            run(*names)
    assert reach.LEARNED == {"content": 0.9, "order": 0.5}


def test_the_page_of_windows_has_the_means_of_its_rows():
    folder = REPOSITORY / "results/claims-2026"
    rows = load_rows(folder / "windows.csv.xz")
    page = (folder / "windows.md").read_text(encoding="utf-8")
    for (label, step), runs in board.measure(rows).groupby(["label", "step"]):
        means = runs[["L", "text", "inside_content", "content", "content_reach"]].mean()
        name = label.replace("|", "\\|")
        assert (
            f"| `{name}` | {step:,} | {len(runs)} | {means.L:.3f} | {means.text:z.3f} | "
            f"{means.inside_content:z.2f} | {means.content:z.2f} | {means.content_reach:.0f} |"
        ) in page
    # the differences by which the rule decides
    for kind in ("nope", "rope"):
        narrow, wide = (f"3 * (rope + window(size={size})) | {kind}" for size in (0.0625, 1.0))
        for step in (600, 1200, 2400):
            found = orders.compare(orders.measure(rows, step), narrow, wide, "content")[:2]
            assert found == ((-1, "second learned") if step > 600 else (0, "in some seeds"))


def test_the_page_of_powers_has_the_table_of_its_rows():
    folder = REPOSITORY / "results/claims-2026"
    page = (folder / "powers.md").read_text(encoding="utf-8")
    numbers = orders.measure(load_rows(folder / "logn.csv.xz"))
    assert board.show(numbers, "nope").split("\n\n")[0] in page
    for line in tables.show("", orders.differences_of(numbers), format="md").split("\n"):
        if line.startswith(("| 32 L |", "| content |")):
            assert line in page
    assert orders.compare(numbers, "nope", "nope, power 2", "L")[:2] == (0, "0.000 ± 0.000")
    for name in ("rope", "windows"):
        numbers = orders.measure(load_rows(folder / f"logn-{name}.csv.xz"))
        assert board.show(numbers, name).split("\n\n")[0] in page
        for power in ("0.5", "1", "2"):
            better, text, _ = orders.compare(numbers, f"{name}, power {power}", name, "32 L")
            assert better == (-1 if name == "windows" else 0)  # it harms
            assert name == "rope" or text in page


def test_the_page_of_values_has_the_differences_of_its_rows():
    folder = REPOSITORY / "results/claims-2026"
    page = (folder / "values.md").read_text(encoding="utf-8")
    for name, lengths in (("values", "32 L"), ("values-yarn", "8 L")):
        numbers = orders.measure(load_rows(folder / f"{name}.csv.xz"))
        table = orders.differences_of(numbers).replace({"32 L": lengths})
        assert tables.show("", table, format="md").strip() in page
        assert board.show(numbers, numbers.label[0]).split("\n\n")[0] in page
