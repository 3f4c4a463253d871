"""Pieces that mix the vectors of a token with those of the tokens just before."""

import pytest
import torch
from test_schemes import assert_close, build, logits, tokens

from attention import Options
from common.errors import UserError
from configurable import GPTConfig
from measure.examine import examine
from model import GPT, Cache

SIZES = dict(block_size=16, vocab_size=17, n_layer=3, n_head=4, n_embd=32)
# each place by itself, and all of them
AT = ["canon(at=A)", "canon(at=B)", "canon(at=C)", "canon(at=D)", "smear", "key_offset"]
AT += ["short_conv", "smear + canon(taps=3)", "key_offset + canon(at=ACD) | short_conv"]
# one piece for each place alone, in a user's file
OWN = """
from posenc import Piece, Shape


class At(Piece):
    def __init__(self, shape: Shape, *, place: str = "q", rows: int = 3):
        super().__init__()
        self.mixes = {place: rows}

    def mix(self, rows, place):
        return sum((n + 1) * x for n, x in enumerate(rows)) / len(rows)
"""
PLACES = "embedding input branch q k v mlp hidden mlp_branch".split()


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def small(pos, pos_file=None, **settings):
    """A model in float64 with weights that are large enough for each place to be felt."""
    torch.manual_seed(1)
    gpt = GPT(GPTConfig(pos=pos, **(SIZES | settings)), pos_file).double().eval()
    for p in gpt.parameters():
        p.data = p.data + 0.3 * torch.randn_like(p)
    return gpt


@torch.no_grad()
@pytest.mark.parametrize("pos", [*AT, *PLACES])
def test_a_windowed_test_leaves_out_only_what_no_target_depends_on(pos, own):
    if pos in PLACES:
        gpt = small(f"at(place={pos}) + rope", own)
        reach = 3 * 2 if pos != "embedding" else 2
    else:
        gpt = small(pos)
        reach = sum(map(gpt.pos.mixed_before, range(3)))
    idx = tokens(2, 120)
    whole = gpt.losses(idx, idx, window=5)[:, -4:]
    few = gpt.losses(idx, idx[:, -4:], window=5)
    assert_close(few, whole, 1e-7)  # losses are float32
    skipped = gpt.pos.plan_pass(idx, 120, 120, gpt.current_options(), 5, 4).skip
    assert skipped == 120 - 4 - 3 * (5 - 1) - reach > 50


@torch.no_grad()
@pytest.mark.parametrize("pos", AT)
@pytest.mark.parametrize(
    "settings",
    [
        dict(n_kv_head=2, qk_norm=True, norm="rmsnorm", mlp="swiglu"),
        dict(norm_place="after", qk_norm="all", embedding_norm=True),
        dict(parallel_blocks=True, bias=True),
    ],
)
def test_a_text_may_be_read_in_uneven_parts_in_any_block(pos, settings):
    gpt = small(f"rope + ({pos})", **settings)
    idx = tokens(3, 40)
    whole = gpt.logits(idx)
    cache = Cache(3, 40)
    parts = [gpt.logits(part, cache) for part in idx.split([20, 1, 1, 1, 7, 1, 9], 1)]
    assert_close(torch.cat(parts, 1), whole)
    gpt.options = Options(block_queries=7, shared_bytes=0)
    assert_close(gpt.logits(idx), whole)
    # it reaches across the blocks of a text, and no further than it says
    changed = idx.clone()
    changed[:, 5] = (idx[:, 5] + 1) % 17
    assert (gpt.logits(changed) - whole)[:, 5].abs().max() > 1e-4


def test_a_mix_alone_sees_no_more_than_its_rows():
    gpt = build("canon(at=C)", 2)
    for block in gpt.h:
        torch.nn.init.zeros_(block.attn.c_proj.weight)  # attention tells nothing
    idx = tokens(1, 20)
    changed = idx.clone()
    changed[:, 4] = (idx[:, 4] + 1) % 17
    felt = (logits(gpt, idx) - logits(gpt, changed)).abs().amax(-1)[0] > 1e-9
    assert felt.nonzero().flatten().tolist() == list(range(4, 4 + 2 * 3 + 1))


def test_latent_attention_has_other_places():
    settings = dict(kv_lora_rank=8, qk_rope_head_dim=4)
    gpt = small("rope + smear + canon(at=ACD)", **settings)
    idx = tokens(2, 12)
    cache = Cache(2, 12)
    parts = [gpt.logits(part, cache) for part in idx.split([5, 1, 6], 1)]
    assert_close(torch.cat(parts, 1), gpt.logits(idx))
    for pos in ("canon", "short_conv", "key_offset"):
        with pytest.raises(UserError, match="nothing is mixed at '[qk]': this model has vectors"):
            small(pos, **settings)


@pytest.mark.parametrize(
    "pos, words",
    [
        ("canon + key_offset", "canon and key_offset both claim the mixing at k: keep one"),
        ("smear + at(place=embedding)", "both claim the mixing at embedding"),
        ("nope | smear", "smear acts once, before the first layer"),
        ("smear(per_layer=True)", "smear acts once, before the first layer"),
        ("canon(at=BA)", "canon: at: String should match pattern"),
        ("at(rows=0)", "at: mixes has 0 rows at 'q', which must be a whole number, 1 for"),
        ("at(place=score)", "nothing is mixed at 'score': this model has vectors at embedding, "),
    ],
)
def test_what_cannot_be_mixed_is_refused(pos, words, own):
    with pytest.raises(UserError, match=words):
        small(pos, own)


@pytest.mark.parametrize(
    "place, line, words",
    [
        ("q", "return rows[0].roll(-1, 1)", "not read later tokens"),
        ("hidden", "return rows[0].roll(-1, 1)", "not read later tokens"),
        ("mlp", "return rows[0] - rows[0].mean(1, keepdim=True)", "not read later tokens"),
        ("v", "return rows[0].roll(1, 0)", "not read other texts"),
        ("branch", "return rows[0].roll(1, 1)", "not read later tokens|cache"),
        ("k", "return rows[0] / 0", "finite"),
        ("k", "return rows[5]", "IndexError"),
    ],
)
def test_a_wrong_mix_is_found_when_it_is_examined(place, line, words, tmp_path):
    path = tmp_path / "own.py"
    right = "return sum((n + 1) * x for n, x in enumerate(rows)) / len(rows)"
    assert right in OWN
    path.write_text(OWN.replace(right, line))
    config = GPTConfig(pos=f"at(place={place}) + rope", **(SIZES | {"vocab_size": 256}))
    with pytest.raises(UserError, match=words):
        examine(config, path)


@pytest.mark.parametrize("line", ["return rows[0][..., :1]", "rows[0]", "return 0"])
def test_a_mix_of_another_shape_is_refused_and_not_spread(line, tmp_path):
    path = tmp_path / "own.py"
    right = "return sum((n + 1) * x for n, x in enumerate(rows)) / len(rows)"
    path.write_text(OWN.replace(right, line))
    for place in ("branch", "mlp_branch", "k"):
        sentence = f"at: mix at {place} must give a tensor like rows"
        with pytest.raises(UserError, match=sentence):
            examine(GPTConfig(pos=f"at(place={place}) + rope", **SIZES), path)


def test_mix_needs_mixes(tmp_path):
    path = tmp_path / "own.py"
    head = "from posenc import Piece\n\n\nclass Own(Piece):\n"
    for body in ("mixes = {'q': 2}\n", "def mix(self, rows, place):\n        return rows[0]\n"):
        path.write_text(f"{head}    {body}")
        with pytest.raises(UserError, match="has mixes, but none of|must have both mix and mixes"):
            examine(GPTConfig(pos="own + rope", **SIZES), path)
