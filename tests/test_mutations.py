"""The tests, tested: mistakes are planted in a copy of the sources, one at a time, and each must be
found.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["common", "zoo", "run", "measure", "tables", "tools", "tests", "data", "config"]
# a file, and the tests that must fail: their file and what pytest's -k selects; then a line of the
# file, and what it becomes
MISTAKES = """
posenc.py | test_schemes | paper and rope
- pairs = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
+ pairs = torch.cat((a * cos - b * sin, b * cos - a * sin), -1)
posenc.py | test_schemes | paper and rope
- if layout == "half":
+ if layout != "half":
zoo/_taps.py | test_schemes | paper and canon
- return rows[0] + sum(w * x for w, x in zip(self.w[place], rows, strict=True))
+ return rows[0] + sum(w * x for w, x in zip(self.w[place], rows[::-1], strict=True))
scheme.py | test_mix | leaves_out
- n_queries += self.mixed_before(len(layers) - 1)
+ n_queries += 0
scheme.py | test_mix | leaves_out
- before = sum(window - 1 + self.mixed_before(layer) for layer in range(len(self.layers)))
+ before = len(self.layers) * (window - 1)
model.py | test_mix | uneven
- cache.recent[layer, place] = x[:, x.shape[1] - past :].clone()
+ cache.recent[layer, place] = x[:, :past].clone()
posenc.py | test_schemes | million
- return positions[..., None] * inv_freq.to(device, torch.float64)
+ return (positions[..., None] * inv_freq.to(device, torch.float64)).float()
posenc.py | test_schemes | paper and rope
- return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim), 1.0
+ return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / (head_dim - 2)), 1.0
posenc.py | test_schemes | paper and alibi
- return slopes[h] * (j - i)
+ return slopes[h] * (j - i + 1 - 1 * (i == j))
posenc.py | test_schemes | slopes
- power = 2 ** int(math.log2(n_head))
+ power = n_head
posenc.py | test_schemes | t5
- far = (exact + (far * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
+ far = (exact + (far * (num_buckets - exact)).ceil().long()).clamp(max=num_buckets - 1)
posenc.py | test_schemes | window
- return (i - j < size) | (j < sinks)
+ return (i - j <= size) | (j < sinks)
posenc.py | test_schemes | ascend
- return torch.randperm(self.limit, generator=generator)[:length].sort().values
+ return torch.randperm(self.limit, generator=generator)[:length]
posenc.py | test_extensions | temperatures
- factors = factors.clamp(min=1.0)
+ factors = factors.clamp(min=0.0)
posenc.py | test_extensions | transformers
- attention_factor /= 1 + 0.1 * self.mscale_all_dim * math.log(factor)
+ attention_factor *= 1 + 0.1 * self.mscale_all_dim * math.log(factor)
posenc.py | test_extensions | transformers or golden
- share = 1 - ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
+ share = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
posenc.py | test_extensions | transformers
- return self.factor_option * max(1.0, total / self.length) - (self.factor_option - 1)
+ return self.factor_option * max(1.0, total / self.length)
posenc.py | test_extensions | longrope
- mapped = torch.where((ids < self.first).to(mapped.device)[:, None], inv_freq, mapped)
+ mapped = torch.where((ids <= self.first).to(mapped.device)[:, None], inv_freq, mapped)
posenc.py | test_schemes | million
- return new if new.dtype == dtype else t.to(new.device, dtype)
+ return new
scheme.py | test_scheme | pattern
- branch = pattern[layer % len(pattern)]
+ branch = pattern[(layer + 1) % len(pattern)]
scheme.py | test_scheme | pattern
- return count * pattern
+ return (count + 1) * pattern
scheme.py | test_scheme | repeated_branch
- mention = read_mention(tree, len(mentions))
+ mention = read_mention(tree, 0)
scheme.py | test_schemes | act_together
- for a, b in itertools.permutations([*schemes, *extensions], 2):
+ for a, b in ():
scheme.py | test_scheme | length_is
- context = {"first_length": first_length}
+ context = {"first_length": first_length // 2}
scheme.py | test_extensions | wavelengths
- maps = [piece for piece in maps if piece not in rotary_maps] + rotary_maps
+ maps = rotary_maps + [piece for piece in maps if piece not in rotary_maps]
attention.py | test_schemes | paper
- j = torch.minimum(i, plan.key_ids[keys])
+ j = torch.minimum(i, plan.key_ids[keys] + 1)
attention.py | test_schemes | paper or felt
- seen = keys <= queries
+ seen = keys <= queries + 1
attention.py | test_schemes | paper
- q = (q * plan.temperature).to(dtype)
+ q = (q * plan.temperature.sqrt()).to(dtype)
attention.py | test_extensions | every_way
- scores = torch.where(holds, rewritten, scores)
+ scores = torch.where(holds, scores, rewritten)
attention.py | test_schemes | paper and window
- first = max(min(sinks, n_keys), n_keys - q.shape[-2] - size + 1)
+ first = max(min(sinks, n_keys), n_keys - q.shape[-2] - size + 2)
attention.py | test_schemes | cache
- first = len(plan.key_ids) - plan.n_queries  # the place of the first query
+ first = 0
model.py | test_schemes | cache
- self.tensors[slot][:, :, self.n : stop] = x
+ self.tensors[slot][:, :, : x.shape[2]] = x
zoo/fire.py | test_schemes | paper and fire
- longest = torch.maximum(i, self.a.abs() * self.threshold)
+ longest = torch.maximum(j, self.a.abs() * self.threshold)
zoo/_decay.py | test_schemes | paper and fox
- sums = features.mT.cumsum(-1)[..., None] / (scale * LARGE)  # (B, H, S, 1)
+ sums = features.mT.cumsum(-1)[..., None] / LARGE  # (B, H, S, 1)
zoo/_decay.py | test_schemes | columns_of_bfloat16
- high = (bits & -(2**16)).view(torch.float32).to(x.dtype)
+ high = (bits & -(2**8)).view(torch.float32).to(x.dtype)
zoo/cope.py | test_schemes | paper and cope
- p = gates.flip(-1).cumsum(-1).flip(-1).clamp_(max=len(self.table) - 1)  # (B, H, R, C)
+ p = gates.cumsum(-1).clamp(max=len(self.table) - 1)  # (B, H, R, C)
zoo/kerple.py | test_schemes | kerple
- return x.clamp(least, most).detach() + (x - x.detach())
+ return x.clamp(least, most)
zoo/xpos.py | test_schemes | paper and xpos
- decay = (-log_scale).exp().to(cos)
+ decay = log_scale.exp().to(cos)
zoo/rove.py | test_schemes | paper and rove
- return apply_rotary(y, cos / square, -sin / square, self.layout)
+ return apply_rotary(y, cos / square, sin / square, self.layout)
zoo/rove.py | test_schemes | value_of_rove
- square = cos * cos + sin * sin  # of the attention factor
+ square = 1.0
zoo/entmax15.py | test_schemes | entmax15
- return ((z - tau).relu_() / 2).square()
+ return (z - tau).relu_().square()
zoo/entmax15.py | test_schemes | entmax15_and_its_gradient
- tau = newton_step(z, tau)  # the last step gives tau its gradient
+ tau = newton_step(z.detach(), tau)
common/compiler.py | test_schemes | topk_keeps
- room = count - above.sum(-1, keepdim=True, dtype=torch.int32)  # for the equal ones
+ room = count
zoo/xsa.py | test_schemes | xsa
- removed = removed * torch.tanh(self.alpha)[:, None, None]
+ removed = removed * self.alpha[:, None, None]
zoo/path.py | test_schemes | path
- y = (q @ w[:, :, first:].mT).tril() @ solved[:, :, first:]
+ y = (q @ w[:, :, first:].mT).tril(-1) @ solved[:, :, first:]
zoo/nape.py | test_schemes | nape
- slopes[shape.n_head // 2 :] = 0.0
+ slopes[: shape.n_head // 2] = 0.0
zoo/rel_proj.py | test_schemes | paper and rel_proj
- table = nn.functional.pad(self.table, (0, 1))  # 0 from the extent on
+ table = torch.cat((self.table, self.table[:, -1:]), 1)
zoo/rel_proj.py | test_schemes | inkling
- scores = scores * (1 + 0.1 * (count / self.floor).clamp(min=1).log())
+ scores = tile.scores * (1 + 0.1 * (count / self.floor).clamp(min=1).log()) + bias
zoo/wall.py | test_schemes | paper and wall
- until = torch.cat((until_0 + since_1[..., -1:, :], until_1), -2).flatten(2, 3)
+ until = torch.cat((until_0 + since_0[..., -1:, :], until_1), -2).flatten(2, 3)
zoo/wall.py | test_schemes | wall_is_exact
- until = pad(logs[:, :, 1:first].flip(2).cumsum(2).flip(2), (0, 0, 0, 1))
+ until = logs[:, :, :first].sum(2, keepdim=True) - logs[:, :, :first].cumsum(2)
config/recipes/inkling.py | test_recipes | whole_model
- pos = "short_conv + (5 * (rel_proj(extent=0.25) + window(size=0.25)) | rel_proj(floor=1.0))"
+ pos = "short_conv + (4 * (rel_proj(extent=0.25) + window(size=0.25)) | rel_proj(floor=1.0))"
zoo/self_extend.py | test_extensions | distances
- query=lambda i: i // g + (w - w // g),
+ query=lambda i: i // g + w,
zoo/streaming.py | test_extensions | distances
- query=lambda i: i.clamp(max=sinks + size - 1),
+ query=lambda i: i.clamp(max=sinks + size),
zoo/learned2d.py | test_schemes | images
- image = nn.functional.interpolate(image, size=(side, side), mode=self.resize)
+ image = nn.functional.interpolate(image, size=(side, side), mode="bilinear")
config/recipes/flint.py | test_recipes | whole_model and flint
- pos = "sink + (2 * nope | 3 * (rope + window(size=0.0625)) | nope)"
+ pos = "sink + (2 * nope | 3 * (rope + window(size=0.075)) | nope)"
config/recipes/mellum2.py | test_recipes | whole_model and mellum2
- pos = "3 * (rope(base=500000) + window(size=0.125)) | rope(base=500000)"
+ pos = "3 * (rope + window(size=0.125)) | rope(base=500000)"
config/recipes/ministral3.py | test_recipes | whole_model and ministral3
- pos = "rope(base=1000000) + step_temperature(first=0)"
+ pos = "rope(base=1000000) + step_temperature"
zoo/step_temperature.py | test_schemes | paper and step_temperature
- steps = (index.long() + self.first) // self.floor
+ steps = (index.long() + 1) // self.floor
zoo/gate.py | test_schemes | paper and gate
- return -y * nn.functional.logsigmoid(-gates)
+ return y * nn.functional.logsigmoid(-gates)
zoo/ssmax.py | test_schemes | paper and ssmax
- return factors if self.b is None else factors + self.b[:, None]
+ return factors if self.b is None else factors * self.b[:, None]
zoo/learned_rope.py | test_schemes | paper and learned_rope
- angles = angles * self.shift.to(angles).exp()[..., None, :]  # (H, 1, F) or (1, F)
+ angles = angles * self.shift.to(angles)[..., None, :]
zoo/int8.py | test_extensions | eight
- scale = largest.clamp(min=torch.finfo(x.dtype).smallest_normal * 128) / 127
+ scale = largest.clamp(min=torch.finfo(x.dtype).smallest_normal * 128) / 255
measure/examine.py | test_examine | fault
- check_same(plain[:2], logits_of(model, tokens[:2]), "not read other texts of the batch", NEAR)
+ pass
measure/examine.py | test_examine | fault
- warnings.append(str(error))
+ pass
data/batches.py | test_documents | epoch
- cut = [np.arange(a, b - 1, length) for a, b in pairwise(document_edges(corpus, split))]
+ cut = [np.arange(a, b, length) for a, b in pairwise(document_edges(corpus, split))]
data/batches.py | test_documents | epoch
- is_inside = document == document[:, :1]
+ is_inside = document <= document[:, :1] + 1
data/batches.py | test_documents | masked_rows
- return tokens, document == np.roll(document, 1, axis=1)  # of column 0 nothing is asked
+ return tokens, document == document[:, :1]
attention.py | test_documents | losses_that_it_has_alone
- seen = seen & (keys >= 0)
+ seen = seen & (keys > -queries)
attention.py | test_documents | losses_that_it_has_alone
- return table.view(-1, *table.shape[-3:]).transpose(0, 1)
+ return table[:1].view(-1, *table[:1].shape[-3:]).transpose(0, 1)
attention.py | test_documents | losses_that_it_has_alone
- if plan.starts is not None and sinks > 0:  # each document has its own
+ if False:
model.py | test_documents | losses_that_it_has_alone
- starts = F.pad(after * (targets[:, :-1] < 0), (1, 0)).cummax(1).values
+ starts = F.pad(after * (targets[:, :-1] < 0), (0, 1)).cummax(1).values
data/corpus.py | test_documents | share
- rows = (edges[1:-1] - 1) // length  # in which the first token of a document is a target
+ rows = edges[1:-1] // length
run/positions.py | test_positions | effect
- base = inside or rules[base_key]
+ base = outside or rules[base_key]
run/positions.py | test_positions | scaling
- if "attention_factor" in rope or not (all_dim and rope.get("mscale")):
+ if "attention_factor" in rope:
posenc.py | test_positions | deepseeks
- return torch.full_like(index, root**2)
+ return torch.full_like(index, root)
"""


LINES = MISTAKES.strip().splitlines()


def test_each_mistake_has_its_line():
    for place, old in zip(LINES[0::3], LINES[1::3], strict=True):
        file = place.partition(" | ")[0]
        text = (ROOT / file).read_text(encoding="utf-8")
        assert text.count(old[2:]) == 1, f"{file} has no longer one line {old[2:]}"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LINES) // 3))
def test_a_planted_mistake_is_found(number, tmp_path):
    place, old, new = LINES[3 * number : 3 * number + 3]
    file, tests, selected = place.split(" | ")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.bin", "*.npy")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / file).read_text(encoding="utf-8")
    (tmp_path / file).write_text(text.replace(old[2:], new[2:]), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "--noconftest", "-x", "-q"]
    command += [f"tests/{tests}.py", "-k", selected]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 1, f"not found: {ended.stdout[-300:]}{ended.stderr[-300:]}"
