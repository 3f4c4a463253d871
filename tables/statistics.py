"""What can be concluded from records: of one run, and of schemes over seeds.

Records are compared only if they were measured on the same targets of the same text. Windows and
seeds are never pooled: the error of a difference within a run comes from its windows, that of a
difference between schemes from their seeds.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from measure import protocols
from tables import reach
from tables.records import Record, finite_or_inf

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
    if "fixed_targets" not in set(rows.protocol) or rows.documents.notna().any():
        return ""  # a corpus with questions shows it by their answers
    length = rows.block_size.iloc[0]
    table = length_table(rows)
    doubt = f"does not show that it uses more than {length}"
    half = table.reindex([length // 2]).iloc[0]  # the line of N = L/2, NaN if it was not tested
    beyond = table[table.index > length]
    if math.isnan(half.gain):
        return f"{doubt}: L/2 was not tested"
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
    from scipy.stats import t

    numbers = numbers.dropna()  # with an infinite number the interval is NaN
    if len(numbers) < 3:
        return math.nan
    return t.ppf(0.975, len(numbers) - 1) * numbers.sem()


def compared_protocols() -> list[str]:
    """The names of the protocols whose losses are compared over seeds."""
    return [protocol.name for protocol in protocols.PROTOCOLS if protocol.over_seeds]


def over_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Selected rows over seeds: a line for each protocol that is compared, label and length.

    `mean` (inf if a seed diverged), `sd`, and `half`, half of the 95 % t-interval of the mean, are
    over the `seeds`; `stderr_vs_L` is that of the first. `difference` is the mean difference to the
    first label (NaN for that itself), paired over the seeds that both have, and `error` is half of
    its interval. With fewer than three seeds, intervals are NaN: the seeds are the sample, never
    the windows.
    """
    rows = rows[rows.protocol.isin(compared_protocols())]
    rows = rows.assign(loss=finite_or_inf(rows))
    is_first = rows.label.isin(rows.label.head(1))  # none, if there are no rows
    same = ["protocol", "seed", "length"]
    rows = rows.join(rows[is_first].set_index(same).loss.rename("first"), on=same)
    with np.errstate(invalid="ignore"):  # inf - inf
        rows["difference"] = (rows.loss - rows["first"]).where(~is_first)
        groups = rows.groupby(["protocol", "label", "length"], sort=False)
        table = groups.loss.agg(seeds="size", mean="mean", sd="std", half=half_interval)
        table["difference"] = groups.difference.mean().where(np.isfinite)
        table["error"] = groups.difference.agg(half_interval)
    table["stderr_vs_L"] = groups.stderr_vs_L.first()
    return table.reset_index()


def extension_gains(rows: pd.DataFrame) -> pd.DataFrame:
    """What each extension gains over cropping the text to L: a line for each label and length.

    `rows` are selected with extend="all". The gain is the loss at L of the same seed's model,
    without the extension, minus the loss of the row (-inf: it diverged): `mean` and `sd` are over
    the seeds.
    """
    rows = rows[rows.protocol == "fixed_targets"]
    cropped = rows.query("extend == trained_extend and length == block_size")
    gains = rows.run.map(cropped.set_index("run").nats) - finite_or_inf(rows)
    table = over_seeds(rows.assign(nats=gains, diverged=False))
    return table[["label", "length", "seeds", "mean", "sd"]]


def standard_error(numbers: Sequence[float]) -> float | None:
    """The standard error of the mean of the numbers; None for a single one."""
    return float(pd.Series(numbers).sem()) if len(numbers) > 1 else None
