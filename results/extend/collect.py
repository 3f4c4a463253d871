"""Collect the losses of run folders into one small file, with where they come from.

    python results/extend/collect.py NAME=out/RUN ... > results/extend/books.json

NAME is the name of a run in the tables. It is empty for the model that is extended: each of its
extensions then has its own expression as a name, and `none` is no extension. A run with a name is
taken as it was trained.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Print {"losses": {what: {seed: {length: nats}}}, "runs": [...]}."""
    losses: dict = {}
    runs = []
    for word in sys.argv[1:]:
        name, _, folder = word.partition("=")
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        result = json.loads((Path(folder) / "extrapolation.json").read_text(encoding="utf-8"))
        for row in result["rows"]:
            as_trained = row["extend"] == result.get("extend")
            here = (row["protocol"], row["dataset"]) == (
                "fixed_targets",
                config["settings"]["dataset"],
            )
            if not here or row["nats"] is None or (name and not as_trained):
                continue
            of = losses.setdefault(name or row["extend"] or "none", {}).setdefault(
                str(result["seed"]), {}
            )
            of[str(row["length"])] = row["nats"]
        runs.append(
            {
                "name": name,
                "folder": Path(folder).name,
                **{
                    key: config[key]
                    for key in (
                        "settings",
                        "versions",
                        "git_commit",
                        "device",
                        "dtype",
                        "corpus_sha256",
                        "parameters",
                        "train_lengths",
                    )
                },
            }
        )
    print(json.dumps({"losses": losses, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
