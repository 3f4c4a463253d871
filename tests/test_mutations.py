"""The tests of the schemes and of the extensions, tested: mistakes are planted in copies of the sources, one at a time, and each must be found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutation:
    """`old`, which stands once in the file, becomes `new`; the tests of that file that pytest's -k selects must notice."""

    file: str
    old: str
    new: str
    select: str
    tests: str = "test_schemes"


POSENC, SCHEME, ATTENTION, MODEL = "posenc.py", "positions/scheme.py", "attention.py", "model.py"
EXTEND, TRAIN, EXPLAIN, REPORT = "extend.py", "train.py", "explain.py", "runs/figures.py"
EVALUATE, RESULTS = "evaluate.py", "runs/results.py"
START, GRAMMAR, RULES = "runs/start.py", "positions/grammar.py", "positions/rules.py"
ANSWERS, ROWS, CONTEXT = "runs/answers.py", "data/rows.py", "data/context.py"
NEEDLES = "data/needles/prepare.py"
MUTATIONS = [
    # rotations
    Mutation(
        POSENC,
        "pairs = torch.cat((a * cos - b * sin, b",
        "pairs = torch.cat((a * cos + b * sin, b",
        "paper and rope",
    ),
    Mutation(POSENC, 'if layout == "half":', 'if layout != "half":', "paper and rope"),
    Mutation(
        POSENC,
        "positions.to(exact, torch.float64)[..., None] * inv_freq.to(exact, torch.float64)",
        "positions.to(exact, torch.float32)[..., None] * inv_freq.to(exact, torch.float32)",
        "million and rope",
    ),
    Mutation(POSENC, "base ** (-torch.arange", "base ** (torch.arange", "paper and rope"),
    Mutation(
        POSENC,
        "base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)",
        "base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / (head_dim - 2))",
        "llama",
    ),
    Mutation(POSENC, "int(fraction * shape.head_dim)", "shape.head_dim", "neox"),
    Mutation(
        POSENC,
        "inv_freq[int(self.p * len(inv_freq)) :] = 0.0",
        "inv_freq[: len(inv_freq) - int(self.p * len(inv_freq))] = 0.0",
        "proportional",
    ),
    Mutation(
        POSENC, "return (1 + torch.linspace(", "return (1 - torch.linspace(", "paper and rope"
    ),
    Mutation(
        POSENC,
        "return turned, turned",
        "return turned, (lambda x: x)",
        "paper and rope",
    ),
    Mutation(
        SCHEME,
        'for p in own if overrides(p, "turn")',
        'for p in own[:1] if overrides(p, "turn")',
        "paper and rope",
    ),
    # biases
    Mutation(POSENC, "slopes[h] * (j - i)", "slopes[h] * (i - j)", "paper and alibi"),
    Mutation(POSENC, "slopes[h] * (j - i)", "slopes[h] * (j - i + 1)", "paper and alibi"),
    Mutation(POSENC, "floor = 2 ** int(math.log2(n_head))", "floor = n_head", "mpt"),
    Mutation(
        POSENC,
        "nn.functional.softplus(self.raw.to(like.dtype))",
        "self.raw.to(like.dtype)",
        "paper and alibi",
    ),
    Mutation(POSENC, "t5_buckets(i - j, self", "t5_buckets(j - i, self", "paper and t5"),
    Mutation(POSENC, "t5_buckets(i - j, self", "t5_buckets(i - j + 1, self", "paper and t5"),
    Mutation(POSENC, "far = (exact + (far", "far = (exact + 1 + (far", "t5_is_the_bias"),
    Mutation(
        POSENC, "/ math.log(max_distance / exact)", "/ math.log(max_distance)", "t5_is_the_bias"
    ),
    Mutation(
        SCHEME,
        'tuple(p.bias(like) for p in own if overrides(p, "bias"))',
        'tuple(p.bias(like) for p in own if overrides(p, "bias"))[:1]',
        "paper and kerple",
    ),
    # masks, positions, temperatures, embeddings
    Mutation(POSENC, "(i - j < size) |", "(i - j <= size) |", "paper and window"),
    Mutation(POSENC, "| (j < sinks)", "| (j <= sinks)", "paper and window"),
    Mutation(
        POSENC,
        "index * self.limit // total",
        "index * self.limit // (total + 1)",
        "paper and randomized",
    ),
    Mutation(POSENC, "[:length].sort().values", "[:length]", "ascend and randomized"),
    Mutation(
        SCHEME,
        "return self.ids_piece.ids(index, total) if self.ids_piece else index",
        "return index",
        "paper and randomized",
    ),
    Mutation(
        POSENC,
        "torch.log(index.to(like.dtype) + 1) / math.log(self.length)",
        "torch.log(index.to(like.dtype)) / math.log(self.length)",
        "paper and logn",
    ),
    Mutation(
        POSENC,
        "torch.log(index.to(like.dtype) + 1) / math.log(self.length)",
        "torch.log(index.to(like.dtype) + 1)",
        "paper and logn",
    ),
    Mutation(
        SCHEME,
        "math.prod(temperatures[1:], start=temperatures[0])",
        "temperatures[0]",
        "paper and ssmax",
    ),
    Mutation(
        POSENC,
        "torch.cat(cos_sin(positions, inv_freq)[::-1], -1)",
        "torch.cat(cos_sin(positions, inv_freq), -1)",
        "paper and sinusoidal",
    ),
    Mutation(POSENC, "return self.scale * sinusoids(", "return sinusoids(", "paper and sinusoidal"),
    Mutation(
        POSENC,
        "nn.functional.embedding(ids, table)",
        "nn.functional.embedding(ids.clamp(max=7), table)",
        "paper and learned",
    ),
    # which piece acts where
    Mutation(
        SCHEME,
        'key = f"{number}_{name}_layer{layer}" if own else',
        'key = f"{number}_{name}" if own else',
        "layers_share and cope",
    ),
    Mutation(
        SCHEME,
        "own = cls.per_layer if mention.per_layer is None else mention.per_layer",
        "own = cls.per_layer",
        "layers_share and t5",
    ),
    Mutation(
        SCHEME,
        'f"{number}_{name}_layer{layer}"',
        'f"{number}_{name}_layer{layer // 2}"',
        "layers_share and cope",
    ),
    Mutation(GRAMMAR, "layer % count == branch", "branch == 0", "paper and nope"),
    Mutation(RULES, "if second in a.conflicts:", "if second in ():", "two_schemes and xpos"),
    Mutation(
        RULES,
        "return piece.reads_ids and is_acting(piece)",
        "return is_acting(piece)",
        "nothing_reads",
    ),
    # attention
    Mutation(
        ATTENTION, "seen = columns <= index", "seen = columns <= index + 1", "paper and alibi"
    ),
    Mutation(
        ATTENTION,
        "seen = seen & mask(index, columns)",
        "seen = seen | mask(index, columns)",
        "paper and window",
    ),
    Mutation(
        ATTENTION,
        "i, j = crossed(plan.query_ids[..., rows], plan.key_ids[..., columns])",
        "i, j = index, columns[None]",
        "gaps and alibi",
    ),
    Mutation(
        ATTENTION,
        "found + added, -torch.inf)",
        "found + added * plan.temperature[..., rows, :] if plan.temperature is not None else found + added, -torch.inf)",
        "paper and logn",
    ),
    Mutation(ATTENTION, "q = q * plan.temperature[..., rows, :]", "q = q", "paper and logn"),
    Mutation(ATTENTION, "q = (q * plan.temperature).to(q.dtype)", "q = q", "every_path and logn"),
    Mutation(
        ATTENTION,
        "(q.to(keys.dtype) @ keys.mT).to(dtype) / math.sqrt(q.shape[-1])",
        "(q.to(keys.dtype) @ keys.mT).to(dtype) / q.shape[-1]",
        "paper and alibi",
    ),
    Mutation(
        ATTENTION,
        "(q @ k.mT).to(prepared.added.dtype) * (1 / math.sqrt(q.shape[-1]))",
        "(q @ k.mT).to(prepared.added.dtype)",
        "every_path and alibi",
    ),
    Mutation(
        ATTENTION,
        "j = torch.minimum(i, j)  # a bias may be undefined, even NaN",
        "j = j  # a bias",
        "every_path and kerple",
    ),
    Mutation(
        ATTENTION,
        "index = torch.arange(keys - queries, keys, device=like.device)",
        "index = torch.arange(0, queries, device=like.device)",
        "decoding and window",
    ),
    Mutation(ATTENTION, "queries in (1, keys))", "True)", "decoding and rope"),
    Mutation(ATTENTION, '"is_causal": q.shape[-2] > 1', '"is_causal": True', "decoding and rope"),
    Mutation(
        ATTENTION,
        "near = max(0, first - size + 1)",
        "near = max(0, first - size + 2)",
        "every_path and window",
    ),
    Mutation(
        ATTENTION,
        "[slice(0, sinks), slice(near, stop)]",
        "[slice(0, sinks - 1), slice(near, stop)]",
        "every_path and window",
    ),
    Mutation(
        ATTENTION,
        "here = places[k.shape[-2] - q.shape[-2] :][rows]",
        "here = places[rows][: q.shape[-2]]",
        "decoding and fox",
    ),
    # the model
    Mutation(
        MODEL,
        "places = torch.arange(offset, offset + idx.shape[1]",
        "places = torch.arange(0, idx.shape[1]",
        "decoding and alibi",
    ),
    Mutation(
        MODEL,
        "ids = key_ids[..., -idx.shape[1] :]",
        "ids = key_ids[..., : idx.shape[1]]",
        "decoding and rope",
    ),
    Mutation(
        MODEL,
        "q, k = turn_queries(q), turn_keys(k)",
        "q, k = turn_queries(q), turn_queries(k)",
        "shift and xpos",
    ),
    Mutation(
        MODEL,
        "keep(cache, (self.layer, name), t, keeper) for",
        "keep(cache, (0, name), t, keeper) for",
        "decoding and nope",
    ),
    Mutation(
        MODEL,
        'features = [keep(cache, (self.layer, "features"), t) for t in features]',
        'features = [keep(None, (self.layer, "features"), t) for t in features]',
        "decoding and fox",
    ),
    Mutation(
        ATTENTION,
        "x.repeat_interleave(group, 1) if",
        "x.repeat(1, group, 1, 1) if",
        "grouped",
        "test_arch",
    ),
    Mutation(
        MODEL,
        "k, v = (t.repeat_interleave(self.group, 1) for t in (k, v))",
        "k, v = (t.repeat(1, self.group, 1, 1) for t in (k, v))",
        "grouped",
        "test_arch",
    ),
    Mutation("latent.py", "math.sqrt(k.shape[-1] / q.shape[-1])", "1.0", "absorbed", "test_arch"),
    Mutation(
        "latent.py",
        "x[..., : -self.turned], turn",
        "x[..., self.turned :], turn",
        "deepseek",
        "test_arch",
    ),
    Mutation(
        "families.py",
        'config |= {"rope_parameters": None}',
        "config |= {}",
        "added_to_a_saved",
        "test_families",
    ),
    Mutation("families.py", "config |= outer", "config |= {}", "added_to_a_saved", "test_families"),
    Mutation(MODEL, "norm_eps=1e-6)", "norm_eps=config.norm_eps)", "deepseek_v3", "test_arch"),
    Mutation(
        "data/recall/prepare.py",
        "left[rows[soon], names[soon], last[rows, names][soon]] -= 1",
        "left[rows[soon], names[soon], last[rows, names][soon]] -= 0",
        "order_within_a_window",
        "test_rows",
    ),
    Mutation(
        "families.py",
        ".unflatten(0, (3, ours.n_head, -1)).transpose(0, 1)",
        "",
        "neox",
        "test_families",
    ),
    Mutation(MODEL, "F.silu(gates) * values", "gates * F.silu(values)", "llama", "test_families"),
    Mutation(
        MODEL,
        "x if self.parallel else attended",
        "attended",
        "side_by_side",
        "test_arch",
    ),
    Mutation(
        "cache.py",
        "return x + (found - x).detach() if keeper and cache is None else found",
        "return x if keeper and cache is None else found",
        "bits",
        "test_arch",
    ),
    Mutation(
        MODEL,
        "x = block(x, prepared[number], cache)",
        "x = block(x, prepared[0], cache)",
        "own_branch",
    ),
    Mutation(MODEL, "x = x + embedded.to(x.dtype)", "x = x", "shift and sinusoidal"),
    Mutation(
        MODEL,
        "self.pos.embed(query_ids, Text(tokens, total))",
        "self.pos.embed(query_ids, Text(idx, total))",
        "decoding and abacus",
    ),
    # the zoo
    Mutation(
        "zoo/kerple.py",
        "-r1[h] * torch.log1p(r2[h] * (i - j))",
        "-r2[h] * torch.log1p(r1[h] * (i - j))",
        "paper and kerple",
    ),
    Mutation("zoo/kerple.py", "(i - j) ** r2[h]", "(i - j + 1) ** r2[h]", "paper and kerple"),
    Mutation(
        "zoo/kerple.py", "-r1[h] * (i - j)", "-r1[h] * (i - j) / math.sqrt(8)", "paper and kerple"
    ),
    Mutation(
        "zoo/cope.py",
        'conflicts = ("pope", "xpos")',
        'conflicts = ("pope",)',
        "two_schemes and xpos",
    ),
    Mutation(
        "zoo/xpos.py",
        "(pairs + self.gamma) / (1 + self.gamma)",
        "(pairs + self.gamma) / self.gamma",
        "paper and xpos",
    ),
    Mutation(
        "zoo/selective_rope.py",
        "sums * constant(self.frequencies_of_pairs, steps)",
        "sums",
        "paper and selective_rope",
    ),
    Mutation("zoo/abacus.py", "* digit[:, new, None]", "", "paper and abacus"),
    Mutation("zoo/rfs.py", "max(total, self.length)", "total", "paper and rfs"),
    Mutation(
        "zoo/sandwich.py", "torch.cos(w * distance) - 1", "-w * distance", "paper and sandwich"
    ),
    Mutation(
        "zoo/sandwich.py", "self.n_head / (8 * h)", "8 * h / self.n_head", "paper and sandwich"
    ),
    Mutation(
        "zoo/relative.py",
        "(i - j).clamp(max=self.max_distance)",
        "(i - j - 1).clamp(min=0, max=self.max_distance)",
        "paper and relative",
    ),
    Mutation(
        "zoo/fire.py",
        "torch.maximum(i, a * self.threshold)",
        "a * self.threshold",
        "paper and fire",
    ),
    Mutation(
        "zoo/fire.py",
        "torch.maximum(i, a * self.threshold)",
        "torch.maximum(i + 1, a * self.threshold)",
        "paper and fire",
    ),
    Mutation("zoo/cpb.py", "x = torch.log1p(x) if self.log else x", "x = x", "paper and cpb"),
    Mutation(
        "zoo/multiscale.py", "i - j < ranges[h]", "i - j <= ranges[h]", "paper and multiscale"
    ),
    Mutation(
        "zoo/multiscale.py",
        "for h in reversed(range(shape.n_head))",
        "for h in range(shape.n_head)",
        "paper and multiscale",
    ),
    Mutation(
        "zoo/block_causal.py", "// self.size < 2", "// self.size < 1", "paper and block_causal"
    ),
    Mutation(
        "zoo/block_causal.py",
        "self.span = (2 * self.size, 0)",
        "self.span = (2 * self.size - 1, 0)",
        "every_path and block_causal",
    ),
    Mutation("zoo/cope.py", ".clamp(max=len(self.table) - 1)", "", "paper and cope"),
    Mutation(
        "zoo/cope.py", "gates.flip(-1).cumsum(-1).flip(-1)", "gates.cumsum(-1)", "paper and cope"
    ),
    Mutation("zoo/cope.py", ".masked_fill(~tile.seen, 0.0)", "", "paper and cope"),
    Mutation("zoo/cope.py", "(above - below)", "(below - above)", "paper and cope"),
    Mutation(
        "zoo/fox.py",
        "features.mT.cumsum(-1)",
        "(features.mT.cumsum(-1) - features.mT)",
        "paper and fox",
    ),
    Mutation(
        "zoo/fox.py", "gate = self.sign * self.gate(x)", "gate = self.gate(x)", "paper and fox"
    ),
    Mutation(
        "zoo/fox.py",
        "split(-sums, k.dtype)",
        "split(sums, k.dtype)",
        "paper and fox",
    ),
    Mutation(
        "zoo/dape.py",
        "x = torch.cat((tile.scores, bias), 1)",
        "x = torch.cat((tile.scores, torch.zeros_like(bias)), 1)",
        "paper and dape",
    ),
    Mutation(
        "zoo/dape.py",
        "return tile.scores + tile.added + x",
        "return tile.scores + x",
        "paper and dape",
    ),
    Mutation("zoo/dape.py", "nn.functional.leaky_relu", "nn.functional.relu", "paper and dape"),
    Mutation("zoo/path.py", "2 * torch.sigmoid(beta)", "torch.sigmoid(beta)", "paper and path"),
    Mutation("zoo/path.py", "part] > tile.rows", "part] >= tile.rows", "paper and path"),
    Mutation("zoo/path.py", "(w_ @ k_.mT).tril(-1)", "(w_ @ k_.mT).tril(0)", "paper and path"),
    Mutation("zoo/ssmax.py", "* torch.log(", "+ torch.log(", "paper and ssmax"),
    Mutation(
        "zoo/ssmax.py",
        "torch.log(index.to(like.dtype) + 1)",
        "torch.log(index.to(like.dtype) + 2)",
        "paper and ssmax",
    ),
    Mutation(
        "zoo/scale_invariant.py",
        "self.beta / self.alpha - squared",
        "self.beta / self.alpha + squared",
        "paper and scale_invariant",
    ),
    Mutation(
        "zoo/scale_invariant.py",
        "squared.sqrt() * tile.scores",
        "tile.scores",
        "paper and scale_invariant",
    ),
    Mutation("zoo/xpos.py", "turned(1), turned(-1)", "turned(-1), turned(1)", "paper and xpos"),
    Mutation("zoo/xpos.py", "- total / 2)", "- ids.max() / 2)", "decoding and xpos"),
    Mutation("zoo/resonance.py", ".round(), factor", ".floor(), factor", "paper and resonance"),
    Mutation(
        "zoo/fope.py",
        "cos[..., :kept] @ self.cosines.to(wide)",
        "cos[..., :kept] @ self.sines.to(wide)",
        "paper and fope",
    ),
    Mutation("zoo/fope.py", "inv_freq >= self.floor", "inv_freq <= self.floor", "paper and fope"),
    Mutation("zoo/pope.py", ".clamp(-2 * math.pi, 0)", "", "paper and pope"),
    Mutation(
        "zoo/pope.py",
        "rope_frequencies(2 * self.columns",
        "rope_frequencies(self.columns",
        "paper and pope",
    ),
    Mutation("zoo/pope.py", "root = math.sqrt(2)", "root = 1.0", "paper and pope"),
    Mutation("zoo/learned_rope.py", ".exp()[:, None]", "[:, None]", "paper and learned_rope"),
    Mutation("zoo/selective_rope.py", "steps.cumsum(-1)", "steps", "paper and selective_rope"),
    Mutation(
        "zoo/selective_rope.py",
        "last = slice(k.shape[-2] - q.shape[-2], None)",
        "last = slice(0, q.shape[-2])",
        "decoding and selective_rope",
    ),
    Mutation(
        "zoo/selective_rope.py",
        "x = normalize(x.to(wide).unflatten(-1, (self.heads, -1)), dim=-1).flatten(-2)",
        "x = x.to(wide)",
        "paper and selective_rope",
    ),
    Mutation("zoo/abacus.py", "- last_other - 1", "- last_other", "paper and abacus"),
    Mutation("zoo/cape.py", "** u[1]", "** u[0]", "cape_shifts"),
    Mutation("zoo/cape.py", "self.local_shift * u[2:]", "self.local_shift * u[0]", "cape_shifts"),
    Mutation("zoo/rfs.py", "(index + 0.5)", "index", "paper and rfs"),
    Mutation("zoo/shape.py", "return index + self.test_shift", "return index", "paper and shape"),
    Mutation(
        "zoo/shape.py",
        "torch.randint(self.max_shift + 1, (1,)",
        "torch.randint(self.max_shift + 1, (length,)",
        "shape_moves",
    ),
    # extensions
    Mutation(
        POSENC,
        "factors = self.long if total > self.length else self.short",
        "factors = self.long",
        "fits_and_works and longrope-rope",
        "test_extensions",
    ),
    Mutation(
        POSENC,
        "torch.where((ids < first)",
        "torch.where((ids <= first)",
        "leaves_the_first",
        "test_extensions",
    ),
    Mutation(
        POSENC,
        "return self.given * max(1.0, total / self.length) - (self.given - 1)",
        "return float(self.given)",
        "dynamic and golden or factor_in_force",
        "test_extensions",
    ),
    Mutation(
        SCHEME,
        "[[*shared, *copies[n]] for n",
        "[[*(() if own else shared), *copies[n]] for n",
        "layers_own",
        "test_extensions",
    ),
    Mutation(
        SCHEME,
        "turns = turn_queries, turn_keys",
        "turns = turn_queries, turn_queries",
        "fits_and_works and leaky_rerope-xpos",
        "test_extensions",
    ),
    Mutation(
        "zoo/temperature.py",
        "constant(self.scales, like)[:, None]",
        "constant(self.scales[:1], like)[:, None]",
        "own_temperature",
        "test_extensions",
    ),
    # what is kept on the device
    Mutation(
        POSENC,
        "once(_mapped, device, length, self, *maps)",
        "once(_mapped, device, 1, self, *maps)",
        "kept and one_length",
        "test_posenc",
    ),
    Mutation(
        POSENC,
        "return None if numbers.requires_grad else (numbers.to(device), factor)",
        "return numbers.detach().to(device), factor",
        "learned_and",
        "test_zoo",
    ),
    Mutation(
        POSENC,
        "return None if numbers.requires_grad else (numbers.to(device), factor)",
        "return None if numbers.requires_grad else (numbers, factor)",
        "stays and rope",
        "another_device",
    ),
    Mutation(
        ATTENTION,
        "with sdpa_kernel(MASKED):",
        "with sdpa_kernel([*MASKED, SDPBackend.CUDNN_ATTENTION]):",
        "cudnn",
        "test_attention",
    ),
    Mutation(
        "runs/device.py",
        "torch.cuda.set_device(chosen)",
        "torch.cuda.is_available()",
        "current_one",
        "test_device",
    ),
    Mutation(
        EXTEND,
        "evaluate.losses_at(tester, places, total)",
        "evaluate.losses_at(tester, places, total // factor)",
        "what_a_search_finds",
        "test_extend",
    ),
    Mutation(
        EXTEND,
        'losses[rival] - losses["search"]',
        'losses["search"] - losses[rival]',
        "what_a_search_finds",
        "test_extend",
    ),
    Mutation(EXTEND, '"first": best.first', '"first": 0', "first_positions", "test_extend"),
    Mutation(
        EXTEND,
        "[mixed(parents[a], parents[b], 0.5, random) for a, b in pairs]",
        "[mutated(parents[a], factor, random) for a, b in pairs]",
        "half_of_the_children",
        "test_extend",
    ),
    Mutation(
        EVALUATE,
        "asked = [row for row, _ in ask_all(tester, about, places, settings)]",
        'asked = [{"length": row["length"], "extend": row["extend"]} for row, _ in ask_all(tester, about, places, settings)]',
        "changed_since",
        "test_extend",
    ),
    Mutation(
        EXTEND,
        "return [text for text in wanted if text != own]",
        "return [*wanted, own]",
        "typed_file",
        "test_extend",
    ),
    Mutation(
        EXTEND,
        'for name in ("seed", "init_from")',
        'for name in ("seed",)',
        "two_seeds",
        "test_extend",
    ),
    Mutation(
        REPORT,
        "[[np.mean(of.get(n, [math.nan])) for n",
        "[[of.get(n, [math.nan])[0] for n",
        "figure_of_extensions",
        "test_extend",
    ),
    Mutation(
        TRAIN,
        "step * len(lengths) // self.settings.max_iters if",
        "(step + 1) * len(lengths) // self.settings.max_iters if",
        "as_many_tokens",
        "test_extend",
    ),
    Mutation(
        START,
        "    refuse_other_files(folder, config, start.state)\n",
        "    pass\n",
        "copy_that_was_changed",
        "test_extend",
    ),
    # places and rows
    Mutation(EVALUATE, "<< bits - 1 - k", "<< k", "are_picked", "test_evaluate"),
    Mutation(
        EVALUATE,
        "2 * np.maximum(documents - reach, 0)",
        "np.maximum(documents - reach, 0)",
        "reach_is_a_power",
        "test_evaluate",
    ),
    Mutation(
        EVALUATE,
        "scored = np.minimum(each, places.scored - behind)",
        "scored = np.minimum(each, places.scored)",
        "last_32_targets",
        "test_evaluate",
    ),
    Mutation(
        EVALUATE,
        "for tested in [*fixed_targets(places, length), *nonoverlapping(places, length)]:",
        "for tested in fixed_targets(places, length):",
        "share_no_target",
        "test_evaluate",
    ),
    Mutation(
        RESULTS,
        'KEY += ("step", "checkpoint", ',
        "KEY += (",
        "asked_otherwise",
        "test_evaluate",
    ),
    Mutation(
        RESULTS,
        '"step", "checkpoint", "split_sha256")',
        '"step", "checkpoint")',
        "newest_split",
        "test_evaluate",
    ),
    Mutation(
        EXPLAIN,
        "{count(~pairs.within(pairs.met))} do",
        "{count(~pairs.within(pairs.raw))} do",
        "leaves_unseen",
        "test_explain",
    ),
    Mutation(
        EXPLAIN,
        'at N = {pairs.length}", pairs.raw)]',
        'at N = {pairs.length}", pairs.met)]',
        "figure_draws",
        "test_explain",
    ),
    # rows with answers
    Mutation(ANSWERS, "count)[0] < least", "count)[1] < least", "lower_end", "test_rows"),
    Mutation(ANSWERS, "max(HELD * accuracy,", "max(0 * accuracy,", "window", "test_rows"),
    Mutation(
        ANSWERS, "max(HELD * accuracy, cheap)", "HELD * accuracy", "counting_beyond", "test_rows"
    ),
    Mutation(ANSWERS, "if fair and inside", "if inside", "without_order", "test_rows"),
    Mutation(ANSWERS, "if count < LEAST or", "if", "too_few_answers", "test_rows"),
    Mutation(ANSWERS, "[:-1]) < LEAST", "[:-1]) < 1", "joined", "test_rows"),
    Mutation(ANSWERS, "scored & ~np.pad(", "scored | np.pad(", "one_answer", "test_rows"),
    Mutation(
        ANSWERS,
        "if fair and inside(tested) >= LEARNED else 0.0",
        "if fair else 0.0",
        "that_guesses",
        "test_rows",
    ),
    Mutation(ANSWERS, 'if n <= row["trained"]]', 'if n >= row["trained"]]', "window", "test_rows"),
    Mutation(
        ANSWERS,
        "asked / scored.shape[1], correct)",
        "asked / asked.max(), correct)",
        "one_answer",
        "test_rows",
    ),
    Mutation(ANSWERS, "np.minimum.reduceat", "np.maximum.reduceat", "one_answer", "test_rows"),
    Mutation(
        "data/recall/prepare.py",
        "make_rows(more, 1",
        "make_rows(generator, 1",
        "drawn_after",
        "test_rows",
    ),
    Mutation(
        "data/tasks/prepare.py", 'kinds[last + 1 :] = "i"', "", "answers_of_a_task", "test_rows"
    ),
    Mutation(
        ROWS,
        "np.where(answers[:, 1:] > 0",
        "np.where(answers[:, :-1] > 0",
        "only_answers",
        "test_rows",
    ),
    Mutation(
        ROWS,
        "starts = drawn_starts(n_rows, width, 1, seed,",
        "starts = drawn_starts(n_rows, width, 1, 0,",
        "epoch",
        "test_rows",
    ),
    Mutation(
        ROWS,
        "starts = drawn_starts(n_rows, width, 1, seed, range(first, first + count))",
        "starts = np.arange(first, first + count) % n_rows * width",
        "epoch",
        "test_rows",
    ),
    Mutation(
        ROWS,
        "        first += count * width",
        "        first += count",
        "every_answer",
        "test_rows",
    ),
    Mutation(
        ROWS,
        'if n <= corpus.meta["rows"]["trained"]]',
        "]",
        "validation_loss_is_that",
        "test_rows",
    ),
    Mutation(
        ROWS,
        "or own == kind",
        'or "rows" in trained.meta',
        "only_for_rows_of_the_kind",
        "test_rows",
    ),
    Mutation(ROWS, "or own == kind", "or True", "not_asked", "test_needles"),
    Mutation(
        NEEDLES,
        'and f"{key}:".encode() not in text',
        "",
        "never_answered_by_the_text",
        "test_needles",
    ),
    Mutation(
        NEEDLES,
        "distances = places + BACK -",
        "distances = places + LINE -",
        "distance",
        "test_needles",
    ),
    Mutation(NEEDLES, "train[: round(fraction * TRAIN_ROWS)]", "train", "fraction", "test_needles"),
    Mutation(
        NEEDLES,
        "windows(generator, corpus.train,",
        "windows(generator, corpus.val,",
        "split",
        "test_needles",
    ),
    Mutation(
        NEEDLES,
        "counts[counts.argmin()] = np.inf",
        "counts[:] = np.inf",
        "enough_values",
        "test_needles",
    ),
    Mutation(
        NEEDLES,
        "np.arange(count) % needles\n",
        "np.zeros(count, int)\n",
        "distance",
        "test_needles",
    ),
    # what a text holds
    Mutation(CONTEXT, "count + kinds * found", "count + found", "counts_equal", "test_context"),
    Mutation(CONTEXT, "order)[:, -1]", "order)[:, 0]", "counts_equal", "test_context"),
    Mutation(
        CONTEXT,
        "np.minimum(matched[first:], np.arange(1, len(matched) - first + 1))",
        "matched[first:]",
        "longest_match",
        "test_context",
    ),
    Mutation(
        CONTEXT, "== best[k])[-1] + 1]", "== best[k])[0] + 1]", "longest_match", "test_context"
    ),
    Mutation(
        CONTEXT,
        "nats[own & fitted]",
        "nats[own & ~fitted]",
        "fitted_on",
        "test_context",
    ),
    Mutation(CONTEXT, 'if kept["asked"] == asked else {}', "", "kept_beside", "test_context"),
    # images, what leaves the project, shares of work
    Mutation(POSENC, "index // side * COLUMNS", "index % side * COLUMNS", "id_holds", "test_grid"),
    Mutation("zoo/rope2d.py", "(2 * widened(p) + 1)", "(2 * widened(p))", "dinov3", "test_grid"),
    Mutation(
        "zoo/alibi2d.py",
        "(column - other_column) ** 2",
        "(column - other_column)",
        "penalty",
        "test_grid",
    ),
    Mutation(MODEL, "idx[rows, -length:]", "idx[rows, :length]", "padded", "test_model"),
    Mutation(
        "runs/formats.py",
        "wide = len(head) - len(cells)",
        "wide = len(head)",
        "latex",
        "test_formats",
    ),
    Mutation("runs/formats.py", "about | result", "result", "numbers", "test_formats"),
    Mutation(
        "runs/webpage.py",
        "[html.escape(cell.strip()) for",
        "[cell.strip() for",
        "never_code",
        "test_webpage",
    ),
    Mutation(
        "runs/diagnose.py",
        "return scores(q, k, plan, slice(None), *features).softmax(-1)",
        "return scores(q, k, plan, slice(None), *features).softmax(-2)",
        "maps",
        "test_diagnose",
    ),
    Mutation(
        "configurable.py", "(own - first) // step + 1, (last", "own, (last", "array", "test_ablate"
    ),
    Mutation("data/download.py", '"ab" if rest', '"ab" if have', "goes_on", "test_data"),
    Mutation(
        "data/wikipedia/prepare.py", 'and "".join(lines).strip()', "", "wikitext", "test_data"
    ),
]


def planted(mutation: Mutation, root: Path = ROOT) -> str:
    """The file's text with the mistake in it; fails where what is to be changed does not stand there exactly once."""
    text = (root / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1, (
        f"{mutation.old!r} stands {text.count(mutation.old)} times in {mutation.file}: mend the mutation"
    )
    assert mutation.old != mutation.new
    return text.replace(mutation.old, mutation.new)


@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda mutation: f"{mutation.file}: {mutation.old} -> {mutation.new}"
)
def test_what_a_mutation_changes_is_in_the_sources(mutation):
    compile(planted(mutation), mutation.file, "exec")


def copied(folder: Path) -> Path:
    """The sources and the tests that mutations name, in a folder of their own."""
    tests = {f"tests/{mutation.tests}.py" for mutation in MUTATIONS}
    for pattern in (
        "*.py",
        "positions/*.py",
        "runs/*.py",
        "runs/*.html",
        "zoo/*.py",
        "data/*.py",
        "data/*/prepare.py",
        "docs/catalogue.py",
        "docs/schemes.md",
        "tests/conftest.py",
        "tests/oracles.py",
        "tests/test_report.py",
        *tests,
        "config/*/*.py",
        "*.toml",
    ):
        for path in ROOT.glob(pattern):
            (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / path.relative_to(ROOT))
    return folder


def outcome(folder: Path, tests: str, select: str) -> subprocess.CompletedProcess:
    """Of the tests of a file that `select` names, up to the first failure; 1: a test failed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))} | {
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"tests/{tests}.py",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        select,
    ]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.slow
def test_every_planted_mistake_is_found(tmp_path: Path, record: Callable[..., None]) -> None:
    sound = copied(tmp_path / "sound")
    for tests in {mutation.tests for mutation in MUTATIONS}:
        plain = outcome(sound, tests, "not compil")
        assert plain.returncode == 0, plain.stdout[
            -3000:
        ]  # else every mistake would seem to be found

    def code(place: int) -> int:
        mutation, folder = MUTATIONS[place], tmp_path / str(place)
        shutil.copytree(sound, folder)
        (folder / mutation.file).write_text(planted(mutation, sound), encoding="utf-8")
        return outcome(folder, mutation.tests, mutation.select).returncode

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(code, range(len(MUTATIONS))))
    missed = [
        f"{m.file}: {m.old} -> {m.new} (exit {code})"
        for m, code in zip(MUTATIONS, codes, strict=True)
        if code != 1
    ]
    print(f"mutations caught: {len(MUTATIONS) - len(missed)} of {len(MUTATIONS)}")
    record("mutations caught", len(MUTATIONS) - len(missed), tried=len(MUTATIONS))
    assert not missed, "\n".join(missed)
