"""Time and memory of a model of SmolLM-135M's shape, with random weights: pretrained.json here.

python results/models/pretrained.py
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from model import GPT  # noqa: E402
from runs.folder import provenance  # noqa: E402

SHAPE = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30)
SHAPE |= dict(num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048)
SHAPE |= dict(tie_word_embeddings=True)


def main() -> None:
    """Save, load, read one text of 2,048 tokens with and without yarn, and write what it took."""
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
        megabytes = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        gpt = GPT.from_huggingface(folder).eval()
    idx = torch.randint(gpt.config.vocab_size, (1, 2049))
    found = {"parameters": gpt.parameter_count, "megabytes_on_disk": round(megabytes)}
    for extend in ("", "yarn(factor=4)"):
        gpt.extend(extend)
        started = time.perf_counter()
        with torch.no_grad():
            gpt.losses(idx[:, :-1], idx[:, 1:])
        found[f"seconds, {extend or 'none'}"] = round(time.perf_counter() - started, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found |= {"gib_at_most": round(peak, 2), "threads": torch.get_num_threads()} | provenance()
    (HERE / "pretrained.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in found.items() if name != "sources_sha256"})


if __name__ == "__main__":
    main()
