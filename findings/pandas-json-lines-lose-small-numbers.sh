#!/usr/bin/env bash
# Expected: to_json and read_json keep a table, as to_csv and read_csv do. Seen: to_json cuts
# numbers at the tenth decimal, so that a p-value of 3e-12 becomes 0.0, and read_json turns short
# commit names whose letters are all e into numbers, 58e7 into 580000000.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile pandas==3.1.1
venv/bin/python -W ignore - <<'PYTHON'
import io

import pandas as pd

table = pd.DataFrame({"commit": ["1234567", "58e7"], "p": [3e-12, 4.5e-8]})
lines = table.to_json(orient="records", lines=True)
from_json = pd.read_json(io.StringIO(lines), lines=True)
from_csv = pd.read_csv(io.StringIO(table.to_csv(index=False)), dtype={"commit": str})
print("pandas", pd.__version__, "JSON lines:")
print(lines.strip())
print("written:  ", table.to_dict("list"))
print("from JSON:", from_json.to_dict("list"))
print("from CSV: ", from_csv.to_dict("list"))
lost = from_json["p"][0] == 0.0 and from_json["commit"].tolist() == [1234567.0, 5.8e8]
raise SystemExit(not (lost and from_csv.equals(table)))
PYTHON
