"""What can be concluded from records: of one run, and of schemes over seeds.

Records are compared only if they were measured on the same targets of the same text. Windows and
seeds are never pooled: the error of a difference within a run comes from its windows; that of a
difference between schemes has a part over their seeds and one over the windows.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from measure import protocols
from tables import reach
from tables.records import Record, finite_or_inf

KEYS = ["protocol", "label", "length"]  # of a line over seeds
INTERVAL = """±: half of the 95 % interval over seeds and test text; with fewer than three seeds
over the text alone, which tells these runs apart, not their schemes"""

# ---- one run


def paired(a: Record | pd.Series, b: Record | pd.Series) -> tuple[float, float] | None:
    """The difference a - b of two records in nats, and its standard error, paired window by window.

    None if one has no loss, or if they were measured on different targets.
    """
    if pd.isna(a.nats) or pd.isna(b.nats):
        return None
    if a.split_sha256 != b.split_sha256 or a.targets != b.targets:
        return None
    differences = np.subtract(a.block_nats, b.block_nats)
    return a.nats - b.nats, standard_error(differences)


def length_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One run by test length N: the loss by each protocol (inf: it diverged), and further columns.

    gain = loss(L) - loss(N) of fixed_targets, and far = windowed - fixed_targets where N > L, both
    with the standard errors of the paired differences; bits/byte of nonoverlapping.
    """
    length = rows.block_size.iloc[0]
    fixed = rows[rows.protocol == "fixed_targets"].set_index("length")
    # what was not tested has no loss
    at_L = fixed.reindex([length]).iloc[0]
    windowed = rows[rows.protocol == "windowed"].set_index("length").reindex(fixed.index)
    table = rows.assign(loss=finite_or_inf(rows)).pivot(
        index="length", columns="protocol", values="loss"
    )
    columns = [column for protocol in protocols.PROTOCOLS for column in protocol.columns]
    table = table.reindex(columns=[*columns, "far", "far_stderr"]).astype(float)
    table["stderr"] = fixed.stderr
    table["bits/byte"] = rows[rows.protocol == "nonoverlapping"].set_index("length").bits_per_byte
    for n, row in fixed.iterrows():
        if n != length:
            table.loc[n, ["gain", "gain_stderr"]] = paired(at_L, row) or math.nan
        if n > length:
            table.loc[n, ["far", "far_stderr"]] = paired(windowed.loc[n], row) or math.nan
    return table.rename_axis(index="N", columns=None)


def doubts(rows: pd.DataFrame) -> str:
    """Why the rows of one run do not show that it uses context beyond L; empty if they do."""
    if "fixed_targets" not in set(rows.protocol) or rows.blocks.notna().any():
        return ""  # a corpus with questions shows it by their answers
    length = rows.block_size.iloc[0]
    table = length_table(rows)
    doubt = f"does not show that it uses more than {length}"
    if length // 2 not in table.index:
        return f"{doubt}: L/2 was not tested"
    half = table.loc[length // 2]
    beyond = table[table.index > length]
    if math.isnan(half.gain):
        return f"{doubt}: there is no loss at L, or none at L/2"
    if beyond.far.isna().all():
        return f"{doubt}: no N > L was tested by fixed_targets and windowed"
    if -half.gain < max(2 * half.gain_stderr, 0.01):
        return f"{doubt}: loss(L) is not clearly below loss(L/2)"
    if (beyond.far > np.maximum(2 * beyond.far_stderr, 0.005)).any():
        return ""
    return f"{doubt}: fixed_targets is nowhere clearly below windowed"


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """The selected rows of one run in a few numbers: loss_L, gain_4L, gain_32L, the reach."""
    length = rows.block_size.iloc[0]
    table = length_table(rows)
    numbers = {
        "loss_L": table[compared_protocols()].bfill(axis="columns").iloc[:, 0].get(length),
        "gain_4L": table.gain.get(4 * length),
        "gain_32L": table.gain.get(32 * length),
    }
    reaches = reach.reaches(reach.answered(rows))
    return pd.Series(numbers, dtype=float).dropna().to_dict() | reaches


# ---- schemes over seeds


def half_interval(numbers: pd.Series) -> float:
    """Half of the 95 % t-interval of the mean; NaN for one or two numbers, which are too few."""
    from scipy.special import stdtrit  # Student's quantile; scipy.stats takes 0.5 s to import

    numbers = numbers.dropna()  # with an infinite number the interval is NaN
    if len(numbers) < 3:
        return math.nan
    return stdtrit(len(numbers) - 1, 0.975) * numbers.sem()


def paired_interval(differences: pd.DataFrame) -> pd.Series:
    """The mean `difference` over seeds and blocks of the text, (seeds, blocks); `error`, half of
    its 95 % interval; `over_seeds`, the part of that over seeds; `shared`, the number of seeds. A
    seed that only one side has is NaN.

    The interval joins two of Student's, by the root of the sum of their squares: over seeds, and
    over the blocks, which all seeds share. With fewer than three seeds, or blocks, it is the other
    alone.
    """
    by_seed = differences.mean(axis="columns")
    by_block = differences.mean()
    parts = pd.Series([half_interval(by_seed), half_interval(by_block)])
    return pd.Series(
        {
            "difference": by_seed.mean(),
            "error": (parts**2).sum(min_count=1) ** 0.5,
            "over_seeds": parts[0],
            "shared": by_seed.count(),
        }
    )


def compared_protocols() -> list[str]:
    """The names of the protocols whose losses are compared over seeds."""
    return [protocol.name for protocol in protocols.PROTOCOLS if protocol.over_seeds]


def over_seeds(rows: pd.DataFrame, names: Sequence[str] = ()) -> pd.DataFrame:
    """Selected rows over seeds: a line for each protocol, label and length. `names` are those of
    the protocols, by default `compared_protocols`, or all if none of these was tested.

    `mean` (inf if a seed diverged), `sd`, and `half`, half of the 95 % t-interval of the mean (NaN
    below three seeds), are over the `seeds`; `stderr_vs_L` and `windows` are those of the first.
    The difference from the first label of a protocol has the columns of `paired_interval` (NaN for
    that itself, and where a seed diverged).

    Left out are the lengths at which a label has a loss for fewer seeds than at another: the mean
    would be one of other models than at the next length.
    """
    compared = rows[rows.protocol.isin(names or compared_protocols())]
    rows = rows if compared.empty else compared
    is_first = rows.label == rows.groupby("protocol").label.transform("first")
    rows = rows.assign(loss=finite_or_inf(rows), is_first=is_first).set_index([*KEYS, "seed"])
    count = rows.loss.groupby(KEYS).transform("count")
    rows = rows[count == count.groupby(KEYS[:2]).transform("max")]
    groups = rows.groupby(KEYS, sort=False)
    with np.errstate(invalid="ignore"):  # inf - inf
        table = groups.loss.agg(seeds="size", mean="mean", sd="std", half=half_interval)
    table[["stderr_vs_L", "windows"]] = groups[["stderr_vs_L", "windows"]].first()
    # the differences from the first, (rows, blocks), where no seed diverged
    measured = np.isfinite(groups.loss.transform("mean"))
    blocks = rows.block_nats.where(measured).apply(pd.Series)
    of_first = blocks.where(rows.is_first, axis=0)
    of_first = of_first.groupby(["protocol", "length", "seed"]).transform("first")
    differences = (blocks - of_first).mask(rows.is_first, axis=0)
    return table.join(differences.groupby(KEYS).apply(paired_interval)).reset_index()


def verdict(schemes: pd.DataFrame) -> list[str]:
    """What `over_seeds` of one protocol shows: a sentence for each label, at the longest length at
    which it can be compared with the first.
    """
    first, *others = schemes.label.unique()
    lines = []
    for label in others:
        known = schemes[schemes.label == label].dropna(subset="error")
        if known.empty:
            lines.append(f"{label}: no loss to compare with {first}, of the same seed and length")
            continue
        row = known.loc[known.length.idxmax()]
        if row.difference == 0:
            lines.append(f"at N = {row.length} {label} has the loss of {first}")
            continue
        side = "lower" if row.difference < 0 else "higher"
        line = f"at N = {row.length} {label} is {side} than {first} by "
        lines.append(line + in_words(row, f": most of that ± is over {halving(row)}"))
    return lines


def rises(rows: pd.DataFrame, protocol: str) -> list[str]:
    """Whether the loss of selected rows by one protocol rises from L to the longest text that every
    seed was tested in: a sentence for each label that was tested beyond L on the same targets.
    """
    if not protocols.find_protocol(protocol).in_places:
        return []  # longer texts have other targets
    rows = rows[rows.protocol == protocol]
    rows = rows.assign(loss=finite_or_inf(rows))
    lines = []
    for label, of_label in rows.dropna(subset="loss").groupby("label", sort=False):
        count = of_label.groupby("length").loss.transform("size")
        of_label = of_label[count == count.max()]
        n = of_label.length.max()
        at_L = of_label.query("length == block_size").assign(label="at L", length=n)
        far = of_label.query("length == @n and length > block_size")
        if at_L.empty or far.empty:
            continue
        row = over_seeds(pd.concat([at_L, far]), [protocol]).iloc[-1]
        if math.isinf(far.loss.max()):
            lines.append(f"{label} diverges in a test of {n}")
        elif row.difference == 0:
            lines.append(f"{label} has the same loss at L and {n}")
        elif not math.isnan(row.error):  # nan: one block, or no seed has both
            verb = "rises" if row.difference > 0 else "falls"
            lines.append(f"{label} {verb} from L to {n} by {in_words(row)}")
    return lines


def in_words(row: pd.Series, why: str = "") -> str:
    """The difference of a line of `over_seeds` with its ±, and `why` it is not decided, if so."""
    text = f"{abs(row.difference):.4f} ± {row.error:.4f}"
    if abs(row.difference) <= row.error:
        text += f", which is not decided{why}"
    if row.shared < 3:
        text += f" (of these runs; seeds: {row.shared:.0f})"
    return text


def halving(row: pd.Series) -> str:
    """The larger part of the interval of a line of `over_seeds`, and what makes it half as wide."""
    if row.over_seeds > 0.71 * row.error:  # more than half of the sum of squares
        # not four times as many: Student's quantile falls, too
        return f"seeds; {4 * row.shared - 7:.0f} would halve that part"
    if protocols.find_protocol(row.protocol).in_places:
        return f"the text; {4 * row.windows:.0f} windows would halve that part"
    return "the text"


def extension_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """What each extension gains over cropping the text to L: a line for each label and length.

    `rows` are selected with extend="all". The gain is the loss at L of the same seed's model,
    without the extension, minus the loss of the row (-inf: it diverged): `mean` over the `seeds`,
    and `error`, half of its interval: see `paired_interval`.
    """
    rows = rows[rows.protocol == "fixed_targets"]
    cropped = rows.query("extend == trained_extend and length == block_size")
    cropped = [cropped.assign(label="cropped", length=n) for n in set(rows.length)]
    table = over_seeds(pd.concat([*cropped, rows]))
    gains = (0 - table.difference).mask(table["mean"] == math.inf, -math.inf)
    return table.assign(mean=gains).query("label != 'cropped'").drop(columns=["sd", "difference"])


def standard_error(numbers: Sequence[float]) -> float | None:
    """The standard error of the mean of the numbers; None for a single one."""
    return float(pd.Series(numbers).sem()) if len(numbers) > 1 else None
