"""Write a run as a folder that `transformers` loads: config, weights and tokenizer.

    python export.py out/RUN FOLDER [--pos_file=FILE]

    python export.py out/learned-stdlib-L128-s1337 gpt2-of-mine
    python export.py out/A bloom-of-mine    # --pos=alibi config/arch/bloom.py --out_dir=out/A
    python export.py out/B llama-of-mine    # --pos=rope config/arch/llama.py --out_dir=out/B

AutoModelForCausalLM.from_pretrained(FOLDER) and AutoTokenizer.from_pretrained(FOLDER) then give the
logits and the tokens of the run. The family is the one that can say the model: GPT-2 (learned),
GPT-NeoX, Llama, Qwen3 or StableLM (rope), BLOOM or MPT (alibi). What none can say is one sentence.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    from configurable import ExportSettings, answer_help

    answer_help(ExportSettings, __doc__)

import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

import data
from configurable import ExportSettings, UserError, configure, explain_errors, require, run_program
from families import LONGER, ORIGINAL, Table, call, has_bias, settings_of, tables, views
from model import GPT, GPTConfig
from posenc import scheme_name
from positions.grammar import parse
from runs.checkpoint import Run, load_run
from runs.files import write_json
from runs.start import is_huggingface, own_corpus

EXAMPLE = "python export.py out/learned-stdlib-L128-s1337 gpt2-of-mine"
END = "<|endoftext|>"
NONE = "no model of Hugging Face can be this one"
FREE = {"bias", "dropout", "extend"}  # a bias may be 0, and an extension is looked at apart

# ---- settings


def config_of(model: GPT) -> Table:
    """The config of the family that can say our model; UserError says which part none can."""
    require(not model.pos.pos_file, f"{NONE}: {model.config.pos} may be a scheme of your own")
    ours, configs, misfits = spelled_out(model.config), {}, {}
    for kind in tables()[0]:
        configs[kind], fixed = config_in(kind, ours), {"head_dim": "n_embd / n_head"}
        try:
            theirs = spelled_out(settings_of(configs[kind], kind))
        except UserError:  # it has no head_dim, and n_head does not divide n_embd
            theirs = ours | fixed
        if kind == "llama" and ours["n_embd"] % ours["n_head"]:  # transformers refuses these
            theirs |= fixed
        odd = sorted(key for key in ours.keys() - FREE if ours[key] != theirs[key])
        misfits[kind] = [f"{key}={theirs[key]}, not {ours[key]}" for key in odd]
    names = {mention.name for mention in parse(model.config.pos).mentions}
    far = {kind: family["pos"] not in names for kind, family in tables()[0].items()}
    best = min(misfits, key=lambda kind: (far[kind], len(misfits[kind])))
    has = " and ".join(misfits[best])
    advice = "config/arch has settings that one can be"
    require(not has, f"{NONE}: the nearest, {best}, has {has}; {advice}")
    return configs[best] | scaling_of(model, best)


def spelled_out(config: GPTConfig) -> Table:
    """The settings of a model with the values that may be left out."""
    sizes = dict(n_inner=config.mlp_width, n_kv_head=config.kv_heads, head_dim=config.head_width)
    pieces = [call(mention.name, mention.options) for mention in parse(config.pos).mentions]
    return asdict(config) | sizes | {"pos": " + ".join(pieces)}


def config_in(kind: str, ours: Table) -> Table:
    """What a family can say of our settings, without the extension."""
    family = tables()[0][kind]
    said = family["usual"] | {"model_type": kind}
    said |= {theirs[0]: ours[name] for name, theirs in family["settings"].items() if theirs}
    said |= {key: ours["bias"] for key in family["biases"].values() if key}
    if "mlp" in family["settings"]:
        able = family["activations"]
        known = [theirs for theirs, name in able.items() if name == ours["mlp"]]
        said[family["settings"]["mlp"][0]] = [*known, *able][0]
    if family["pos"] == "rope":
        (base, part), options = family["rope"], parse(ours["pos"]).mentions[0].options
        said |= {base: options.get("base", 10000)}
        said |= {part: options.get("fraction", 1)} if part in family["usual"] else {}
    return said


def scaling_of(model: GPT, kind: str) -> Table:
    """The length and the rope_scaling that say the active extension; UserError if none does."""
    pieces, length = [*model.pos.extensions], model.config.block_size
    if not pieces:
        return {}
    piece, scaling = pieces[0], tables()[1]
    types = {scaling[of]["extension"]: of for of in sorted(scaling, reverse=True)}  # pi: linear
    of = types.get(scheme_name(piece))
    able = of and len(pieces) == 1 and piece.given != "auto" and not piece.first
    able = able and getattr(piece, "ramp", "code") == "code"
    able = able and not (of == "llama3" and piece.low == 0)  # transformers divides by it
    require(able, f"{NONE}: no rope_scaling is {model.config.extend}")
    said = {"rope_type": of, "factor": piece.given}
    for name in sorted(scaling[of].keys() - {"extension", "factor", "file"}):
        said[scaling[of][name]] = getattr(piece, name)
    if of == "yarn" and not (piece.mscale and piece.mscale_all_dim):  # read only together
        frequencies, _ = model.pos.rotary[0].frequencies(length)
        said["attention_factor"] = piece.map_frequencies(frequencies, 10000, length)[1]
    if of == "longrope":
        said |= {"long_factor": piece.long, "short_factor": piece.short}
    if of in LONGER:
        said[ORIGINAL], length = length, round(length * piece.given)
    return {"rope_scaling": said, tables()[0][kind]["settings"]["block_size"][0]: length}


# ---- weights


def weights_of(model: GPT, config: Table) -> dict[str, Tensor]:
    """Their weights by name. A bias that ours lack is 0; UserError for one that theirs lack."""
    family = tables()[0][config["model_type"]]
    ours, theirs = dict(model.named_parameters()), {}
    for name in [*ours]:
        bias = re.sub("weight$", "bias", name)
        if bias not in ours and has_bias(family, config, bias):
            ours[bias] = ours[name].new_zeros(len(ours[name]))
    for name, x in ours.items():
        if name.endswith(".bias") and not has_bias(family, config, name):
            lacks = f"a Hugging Face {config['model_type']} has no {name}, which is not 0 here"
            require(not x.any(), f"{lacks}: train with --bias=False")
            continue
        for their, view in views(family, model.config, name, x.detach()):
            theirs[their] = view.flatten(0, view.dim() - x.dim()).clone().contiguous()
    return theirs


# ---- tokenizers


def write_tokenizer(corpus: data.Corpus, folder: Path) -> None:
    """tokenizer.json, which gives the tokens of a corpus."""
    kind, names = corpus.meta["tokenizer"], {}
    if kind == "file":
        shutil.copyfile(corpus.folder / "tokenizer.json", folder / "tokenizer.json")
    else:
        names = {} if corpus.tokenizer.end is None else {"eos_token": END}
        new_tokenizer(kind, corpus.tokenizer).save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", about | names)


def new_tokenizer(kind: str, ours: data.Tokenizer) -> Any:
    """A tokenizer of the library `tokenizers` for one of ours that is no such file."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary, end = ours.vocabulary, ours.end
    if kind == "char":
        made = Tokenizer(models.WordLevel({c.decode("utf-8"): n for n, c in enumerate(vocabulary)}))
        made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        made.decoder = decoders.Fuse()
        return made
    ranks = {token: n for n, token in enumerate(vocabulary)}
    merges = [
        (data.signs_of(token[:cut]), data.signs_of(token[cut:]))
        for token in vocabulary[:end]
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    made = Tokenizer(models.BPE({data.signs_of(token): n for token, n in ranks.items()}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([] if end is None else [END])
    return made


# ---- the folder


def export(run: Run, target: Path) -> Table:
    """Write a folder that transformers loads, whole or not at all; its config."""
    from safetensors.torch import save_file

    free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    require(free, f"{target} is not empty: name a new folder")
    config = config_of(run.model)
    weights, corpus = weights_of(run.model, config), own_corpus(run)
    about = {"dtype": "float32", "bos_token_id": None, "pad_token_id": None}
    about |= {"eos_token_id": corpus.tokenizer.end}
    with explain_errors(f"{target} cannot be written", "name another folder"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as aside:
            folder = Path(aside, "model")
            folder.mkdir()
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
            write_tokenizer(corpus, folder)
            write_json(folder / "config.json", config | about)
            os.replace(folder, target)
    return config


def main() -> None:
    """Export a run."""
    settings, words = configure(ExportSettings, sys.argv[1:], __doc__)
    require(len(words) == 2, f"name a run and a new folder, not {len(words)} words: {EXAMPLE}")
    theirs = f"{words[0]} is a Hugging Face model, and export.py takes a run: {EXAMPLE}"
    require(not is_huggingface(words[0]), theirs)
    run = load_run(words[0], pos_file=settings.pos_file)
    try:
        config = export(run, Path(words[1]))
    except ImportError as error:
        raise UserError(f"{error.name} is missing: pip install transformers") from error
    print(f"{words[1]}: a {config['model_type']} of {run.model.parameter_count:,} parameters")


if __name__ == "__main__":
    run_program(main)
