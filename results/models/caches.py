"""What a cache takes, and what 8 bits cost: writes caches.json and caches.md here.

    python extend.py out/RUN none int8 --eval_lengths=128,1024,4096 --dtype=bfloat16     # first
    python results/models/caches.py out/RUN ...

Bytes are of models of `config/size/small.py` in bfloat16. Beside four heads of keys there are two
or one, or a latent of 32 (and 16 columns where the scheme turns some). Losses are of the runs.
"""

import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from model import GPT, GPTConfig  # noqa: E402
from runs.folder import provenance  # noqa: E402

SMALL = dict(n_layer=4, n_head=4, n_embd=128, vocab_size=256)
KINDS = {"a head of keys for each": {}, "two heads of keys": {"n_kv_head": 2}}
KINDS |= {"one head of keys": {"n_kv_head": 1}, "a latent of 32": {"kv_lora_rank": 32}}
EXTENSIONS = ("", "int8")


def bytes_of(pos: str, kind: str, extend: str) -> int:
    """Bytes that the cache keeps of each token."""
    turned = {"qk_rope_head_dim": 16} if "latent" in kind and pos == "rope" else {}
    gpt = GPT(GPTConfig(**SMALL, **KINDS[kind], **turned, pos=pos, extend=extend)).bfloat16()
    return gpt.eval().cache_bytes()


def losses_of(folder: str) -> dict:
    """The losses of fixed_targets of a run, exact and with int8, by length; the cost by block."""
    result = json.loads((Path(folder) / "extrapolation.json").read_text(encoding="utf-8"))
    rows = {
        (r["length"], r["extend"]): r for r in result["rows"] if r["protocol"] == "fixed_targets"
    }
    found = {}
    for length in sorted({n for n, extend in rows if extend == "int8"}):
        exact, rounded = (torch.tensor(rows[length, e]["block_nats"]) for e in (None, "int8"))
        cost = rounded - exact
        error = float(cost.std() / len(cost) ** 0.5)
        found[length] = {"nats": float(exact.mean()), "cost": float(cost.mean()), "stderr": error}
    about = {name: result[name] for name in ("pos", "seed", "train_length", "parameters")}
    return about | {"lengths": found}


def main() -> None:
    """Measure, and write both files."""
    torch.manual_seed(0)
    schemes = ("rope", "alibi", "nope")
    sizes = {
        k: {p: {e or "none": bytes_of(p, k, e) for e in EXTENSIONS} for p in schemes} for k in KINDS
    }
    runs = [losses_of(folder) for folder in sys.argv[1:]]
    content = {"bytes": sizes, "runs": runs} | provenance()
    (HERE / "caches.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    text = ["# Caches", "", "Bytes for each token of a text, bfloat16 and int8:", ""]
    text += ["| | " + " | ".join(schemes) + " |", "| --- " * 4 + "|"]
    for kind, of in sizes.items():
        cells = (f"{of[pos]['none']:,} and {of[pos]['int8']:,}" for pos in schemes)
        text.append(f"| {kind} | {' | '.join(cells)} |")
    text += [
        "",
        "What int8 adds to the loss, nats, with the paired standard error over 64 windows:",
        "",
    ]
    text += ["| run | N | loss | int8 adds |", "| --- | ---: | ---: | ---: |"]
    for run in runs:
        for n, row in run["lengths"].items():
            name = f"`{run['pos']}`, seed {run['seed']}"
            text.append(
                f"| {name} | {n} | {row['nats']:.4f} | {row['cost']:+.5f} ± {row['stderr']:.5f} |"
            )
    (HERE / "caches.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
