"""Schemes with one fault each, and unusual ones without any, as users would write them: plain data.

They were written without a look at the examination that has to tell them apart. They hold for any model with a training
length from 16 to 64, at least 3 layers and 2 heads, an even head width and 256 tokens. tests/test_planted.py shows each
fault. A scheme for an `--extend` is not among them.

Below, a line "=== name ; base ; expression ; words" begins a scheme. The lines after it stand behind its base, one of BASES.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A file with one subclass of Piece, the expression to examine, and what is wrong with it.

    `kind` is causal (the future is read), batch (other texts are), finite (values or gradients), gradient (a parameter
    is not trained), shape (or dtype, or order of ids), paths (one pass, blocks and token by token differ), name, length,
    random (equal calls differ), compile or error. `says` are words that a good sentence contains.
    """

    name: str
    source: str
    pos: str
    kind: str
    says: tuple[str, ...]
    warns: bool = False  # only a warning is right: it breaks beyond L alone


@dataclass(frozen=True)
class Honest:
    """A file with one subclass of Piece, and an expression with which nothing is wrong."""

    name: str
    source: str
    pos: str


HEAD = """\
import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

from posenc import Piece, Rope, Shape, alibi_slopes, apply_rotary, rope_frequencies, rotate


"""

PLAIN = HEAD + "class Cheat(Piece):"

# a gate that each key has for each head, from `features`
GATED = (
    PLAIN
    + """
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.length = shape.first_length
        self.gate = nn.Linear(shape.width, shape.n_head, bias=False)

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
"""
)

# a vector for what `tell` finds at each token
TELLING = (
    PLAIN
    + """
    def __init__(self, shape: Shape):
        super().__init__()
        self.length = shape.first_length
        self.table = nn.Parameter(0.1 * torch.randn(64, shape.width))

    def embed(self, ids, tokens, total):
        return self.table[self.tell(tokens) % 64][:, -ids.shape[-1] :]
"""
)

# a learned slope for each head
SLOPED = (
    PLAIN
    + """
    def __init__(self, shape: Shape):
        super().__init__()
        self.length = shape.first_length
        self.slopes = nn.Parameter(alibi_slopes(shape.n_head))
"""
)

BASES = {
    "PLAIN": PLAIN,
    "ROPE": HEAD + "\nclass Cheat(Rope):",
    "GATED": GATED,
    "TELLING": TELLING,
    "SLOPED": SLOPED,
    "MEAN": GATED.replace("class Cheat", "MEAN = [0.0]\n\n\nclass Cheat"),
    "CLOCK": SLOPED.replace("import sys", "import sys\nimport time"),
    "OWN": HEAD + "class Mine(Piece):",
    "OWN_ROPE": HEAD + "\nclass Mine(Rope):",
}


def schemes(text: str) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Name, source, expression and further words of each scheme in a text."""
    for part in text.split("\n=== ")[1:]:
        first, _, body = part.partition("\n")
        name, base, pos, *words = first.split(" ; ")
        yield name, f"{BASES[base]}\n{body.rstrip()}\n", pos, tuple(words)


def planted(kind: str, text: str) -> tuple[Planted, ...]:
    """The schemes of a text, with one kind of fault."""
    return tuple(
        Planted(name, source, pos, kind, words[:1], "warns" in words)
        for name, source, pos, words in schemes(text)
    )


CAUSAL = planted(
    "causal",
    """
=== features read the next token ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(torch.cat((x[:, 1:], x[:, -1:]), 1))
=== features subtract the mean of the text ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x - x.mean(1, keepdim=True)) ** 2
=== features sum from the wrong end ; GATED ; cheat ; features
    def features(self, x):
        gates = F.logsigmoid(self.gate(x))
        return gates.flip(1).cumsum(1).flip(1)
=== features convolve with the padding on both sides ; PLAIN ; cheat + rope ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.conv = nn.Conv1d(shape.width, shape.n_head, 3, padding=1, bias=False)

    def features(self, x):
        return self.conv(x.mT).mT

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== features normalise over the text ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(F.layer_norm(x, x.shape[1:]))
=== features take the softmax over time ; GATED ; cheat + rope ; features
    def features(self, x):
        return F.softmax(self.gate(x), dim=1)
=== features pool blocks of four tokens ; GATED ; cheat ; features
    def features(self, x):
        padded = F.pad(x, (0, 0, 0, -x.shape[1] % 4))
        pooled = padded.unflatten(1, (-1, 4)).mean(2).repeat_interleave(4, 1)
        return self.gate(pooled[:, : x.shape[1]])
=== features run an LSTM in both directions ; PLAIN ; cheat ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.rnn = nn.LSTM(shape.width, shape.n_head, batch_first=True, bidirectional=True)

    def features(self, x):
        return self.rnn(x)[0]

    def score(self, tile):
        forward, backward = tile.features_k.chunk(2, -1)
        return tile.scores + tile.added + (forward + backward).mT[:, :, None]
=== features mix tokens by a Fourier transform ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(torch.fft.fft(x, dim=1).real)
=== features read five tokens ahead, times a parameter that starts at zero ; PLAIN ; cheat ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(shape.n_head, shape.width))

    def features(self, x):
        return F.pad(x[:, 5:], (0, 0, 0, min(5, x.shape[1]))) @ self.gate.T

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== features read the last token of the text alone ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x) * self.gate(x[:, -1:])
=== features leak in texts of the full length alone ; GATED ; cheat ; features
    def features(self, x):
        if x.shape[1] == self.length:
            x = x.roll(-1, 1)
        return self.gate(x)
=== features leak beyond the training length alone ; GATED ; cheat ; features
    def features(self, x):
        if x.shape[1] > self.length:
            x = x.roll(-1, 1)
        return self.gate(x)
=== features leak in training alone ; GATED ; cheat + alibi ; features
    def features(self, x):
        return self.gate(x.roll(-1, 1) if self.training else x)
=== features leak at test alone ; GATED ; cheat + alibi ; features
    def features(self, x):
        return self.gate(x if self.training else x.roll(-1, 1))
=== features leak without gradients alone ; GATED ; cheat + alibi ; features
    def features(self, x):
        return self.gate(x if torch.is_grad_enabled() else x.roll(-1, 1))
=== features leak from the fiftieth call on ; GATED ; cheat + alibi ; features
    calls = 0

    def features(self, x):
        self.calls += 1
        return self.gate(x if self.calls < 50 else x.roll(-1, 1))
=== features leak in the second layer alone ; GATED ; rope | cheat ; features
    def features(self, x):
        return self.gate(x.roll(-1, 1))
=== score divides by the deviation over all keys ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        s = tile.scores
        return s / s.std(-1, keepdim=True, unbiased=False).clamp(min=1e-3) + tile.added
=== score counts gates of keys ahead ; PLAIN ; cheat ; score
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(shape.n_head))

    def score(self, tile):
        gates = torch.sigmoid(tile.scores)  # CoPE without the mask
        p = gates.flip(-1).cumsum(-1).flip(-1)
        return tile.scores + tile.added - p * F.softplus(self.table)[:, None, None]
=== score takes the features one place too late ; GATED ; cheat ; score
    def features(self, x):
        return self.gate(x)

    def score(self, tile):
        last = tile.features_k.shape[1] - 1
        here = (tile.rows[:, 0] + 1).clamp(max=last)  # c is taken to be exclusive; it is not
        c = F.logsigmoid(tile.features_k).mT.cumsum(-1)
        decay = c[..., here, None] - c[..., None, :]
        return tile.scores * decay.exp().clamp(max=4.0) + tile.added
=== score smooths scores over neighbouring keys ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        s = tile.scores
        smooth = F.avg_pool1d(s.flatten(0, 1), 3, 1, 1).view_as(s)
        return smooth + tile.added
=== score quantises by the largest score of all ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        step = tile.scores.abs().max().clamp(min=1e-6) / 7
        rounded = step * (tile.scores / step).round()
        return tile.scores + (rounded - tile.scores).detach() + tile.added
=== turn normalises over time ; PLAIN ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return ()

    def turn(self, x, tables, is_key):
        return F.normalize(x, dim=2)
=== turn mixes a key with the one after it ; ROPE ; cheat ; turn
    def turn(self, x, tables, is_key):
        return super().turn(x + x.roll(-1, -2) if is_key else x, tables, is_key)
=== embed tells the next token ; TELLING ; cheat ; embed
    def tell(self, tokens):
        return tokens.roll(-1, 1)
=== embed whispers the next token ; TELLING ; cheat + rope ; embed
    def embed(self, ids, tokens, total):
        right = self.table[tokens % 64]
        coming = self.table[tokens.roll(-1, 1) % 64]
        return (right + 1e-5 * coming)[:, -ids.shape[-1] :]
=== embed tells how far the next line break is ; TELLING ; cheat + rope ; embed
    def tell(self, tokens):
        index = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        breaks = index.where(tokens % 8 == 2, tokens.shape[1])  # a line break is token 10
        return breaks.flip(1).cummin(1).values.flip(1) - index
=== embed tells where the next token is token 10, and nothing else ; TELLING ; cheat + rope ; embed
    def tell(self, tokens):
        return (tokens.roll(-1, 1) == 10).long()
=== embed counts how often a token stands in the whole text ; TELLING ; cheat ; embed
    def tell(self, tokens):
        return (tokens[:, :, None] == tokens[:, None]).sum(-1)
=== embed numbers tokens by their rank in the batch ; TELLING ; cheat + alibi ; embed
    def tell(self, tokens):
        return tokens.unique(return_inverse=True)[1]
=== embed counts positions from the end of what it holds ; TELLING ; cheat ; embed
    def tell(self, tokens):
        end = (tokens[:, -1:] + 1) % 16
        return end + torch.arange(tokens.shape[1], device=tokens.device)
=== embed looks up what followed the same words in an earlier call ; TELLING ; cheat + rope ; embed
    def tell(self, tokens):
        known, told = self.__dict__.setdefault("known", {}), torch.zeros_like(tokens)
        for b, text in enumerate(tokens.tolist()):
            for t in range(2, len(text)):
                told[b, t] = known.get(tuple(text[t - 2 : t + 1]), 0)
        for text in tokens.tolist():
            for t in range(2, len(text) - 1):
                known[tuple(text[t - 2 : t + 1])] = text[t + 1]
        return told
=== a mask reads the tokens that embed has kept ; PLAIN ; cheat + rope ; mask
    tokens = None

    def embed(self, ids, tokens, total):
        self.tokens = tokens
        return torch.zeros(ids.shape[-1], 1, device=ids.device)

    def mask(self, i, j):
        coming = self.tokens[0][(i + 1).clamp(max=self.tokens.shape[1] - 1)]
        return (coming % 2 == 0) | (j >= i - 1)
=== a bias reads the tokens that embed has kept ; SLOPED ; cheat ; bias
    tokens = None

    def embed(self, ids, tokens, total):
        self.tokens = tokens
        return torch.zeros(ids.shape[-1], 1, device=ids.device)

    def bias(self, h, i, j):
        w = self.slopes
        if self.tokens is None:
            return w[h] * (j - i)
        rare = (self.tokens.float().mean() - 128) / 128
        return w[h] * (j - i) * (1 + rare)
=== frequencies follow the tokens that embed has kept ; ROPE ; cheat ; frequencies
    tokens = None

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.scale = nn.Parameter(torch.ones(()))  # it is made in each call

    def embed(self, ids, tokens, total):
        self.tokens = tokens
        return torch.zeros(ids.shape[-1], 1, device=ids.device)

    def frequencies(self, total, maps=(), ids=None):
        inv_freq, factor = super().frequencies(total, maps, ids)
        if self.tokens is not None:
            inv_freq = inv_freq * (1 + float(self.tokens.float().std()) / 256)
        return inv_freq * self.scale, factor
=== a temperature reads the tokens that embed has kept ; PLAIN ; cheat + rope ; temperature
    level = None

    def embed(self, ids, tokens, total):
        self.level = (tokens % 2).float().mean()
        return torch.zeros(ids.shape[-1], 1, device=ids.device)

    def temperature(self, index):
        level = 0.0 if self.level is None else self.level
        return torch.ones_like(index) + level
=== ids are moved by the tokens of the caller ; PLAIN ; cheat + rope ; ids
    def ids(self, index, total):
        idx = sys._getframe(2).f_locals.get("idx")
        if idx is None or idx.shape[1] != index.shape[-1]:
            return index
        return index + (idx.roll(-1, 1) % 2).cumsum(1)
=== ids are moved by the tokens of the call before ; PLAIN ; cheat + alibi ; ids
    held = None

    def ids(self, index, total):
        if self.held is None or self.held.shape[1] != index.shape[-1]:
            return index
        return index + (self.held[0] % 2).cumsum(0)

    def embed(self, ids, tokens, total):
        self.held = tokens
        return torch.zeros(ids.shape[-1], 1, device=ids.device)
=== draw writes the tokens of the call before into the positions ; PLAIN ; cheat + rope ; draw
    held = None

    def draw(self, length, generator):
        start = torch.randint(4, (1,), generator=generator)
        index = torch.arange(length) + start
        if self.held is None or self.held.shape[1] != length:
            return index
        return index + (self.held[0].cpu() % 2).cumsum(0)

    def embed(self, ids, tokens, total):
        self.held = tokens
        return torch.zeros(ids.shape[-1], 1, device=ids.device)
=== draw writes the caller's tokens into the positions ; PLAIN ; cheat + rope ; draw
    def draw(self, length, generator):
        index, frame = torch.arange(length), sys._getframe(1)
        while frame is not None:
            for value in list(frame.f_locals.values()):
                if torch.is_tensor(value) and value.dtype == torch.long and value.dim() == 2:
                    if value.shape[1] == length:
                        return index + (value[0].cpu().roll(-1) % 8).cumsum(0)
            frame = frame.f_back
        return index
=== embed reads the targets of the caller ; TELLING ; cheat + rope ; embed
    def tell(self, tokens):
        targets = sys._getframe(5).f_locals.get("targets")
        if targets is None or targets.shape != tokens.shape:
            return torch.zeros_like(tokens)
        return targets.clamp(min=0)
=== features leak in the third layer alone ; GATED ; rope | rope | cheat ; features
    def features(self, x):
        return self.gate(x.roll(-1, 1))
=== features leak in batches of more than two texts alone ; GATED ; cheat + rope ; features
    def features(self, x):
        return self.gate(x.roll(-1, 1) if len(x) > 2 else x)
=== features leak in float32 alone ; GATED ; cheat + rope ; features
    def features(self, x):
        return self.gate(x.roll(-1, 1) if x.dtype == torch.float32 else x)
=== embed tells the next token at every eighth place alone ; TELLING ; cheat + rope ; embed
    def tell(self, tokens):
        index = torch.arange(tokens.shape[1], device=tokens.device)
        return tokens.roll(-1, 1).where(index % 8 == 5, 0)
=== embed tells the next token at the last places alone ; TELLING ; cheat + rope ; embed
    def embed(self, ids, tokens, total):
        index = torch.arange(tokens.shape[1], device=ids.device)
        told = tokens.roll(-1, 1).where(index >= total - 4, 0)
        return self.table[told[:, -ids.shape[-1] :] % 64]
=== embed tells the next token after a space alone ; TELLING ; cheat + rope ; embed
    def tell(self, tokens):
        return tokens.roll(-1, 1).where(tokens == 32, 0)
=== features reshape time into width ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x.mT.reshape(x.shape))  # meant to be undone, is not
""",
)

BATCH = planted(
    "batch",
    """
=== features subtract the mean of the batch ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x - x.mean(0))
=== features run an LSTM that takes texts for time steps ; PLAIN ; cheat ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.rnn = nn.LSTM(shape.width, shape.n_head)

    def features(self, x):
        return self.rnn(x)[0]

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== features read the text before it in the batch ; GATED ; cheat + rope ; features
    def features(self, x):
        return self.gate(x + x.roll(1, 0))
=== features sort the batch ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x.sort(0).values)
=== features are sums along the batch, after a wrong reshape ; GATED ; cheat ; features
    def features(self, x):
        b, t, c = x.shape
        return self.gate(x.reshape(t, b, c).cumsum(0).reshape(b, t, c))
=== features normalise over batch and time in training ; PLAIN ; cheat ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.norm = nn.BatchNorm1d(shape.width, affine=False)
        self.gate = nn.Linear(shape.width, shape.n_head, bias=False)

    def features(self, x):
        return self.gate(self.norm(x.mT).mT)

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== score takes the keys of the first text for all ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        return tile.q @ tile.k[:1].mT / math.sqrt(tile.q.shape[-1]) + tile.added
=== score takes the softmax over texts ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        return tile.scores + F.softmax(tile.scores, dim=0) + tile.added
=== turn normalises over the batch ; PLAIN ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return ()

    def turn(self, x, tables, is_key):
        return F.normalize(x, dim=0)
=== embed gives every text the vectors of the first ; TELLING ; cheat + rope ; embed
    def tell(self, tokens):
        before = F.pad(tokens[:, :-1], (1, 0))
        return before[:1].expand_as(before)
=== embed adds the tokens of the other texts at that place ; TELLING ; cheat ; embed
    def tell(self, tokens):
        return tokens.sum(0).expand_as(tokens)
""",
)

FINITE = planted(
    "finite",
    """
=== the logarithm of distance 0 ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return -w[h] * torch.log(i - j)
=== one over distance 0 ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return w[h] / (i - j)
=== the root of a distance that is taken the wrong way round ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return -w[h] * torch.sqrt(j - i)
=== nan at the largest distance within L alone ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w, far = self.slopes, self.length - 2
        return w[h] * torch.sqrt((far - (i - j)).clamp(max=1))
=== a gaussian with the wrong sign overflows ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * torch.exp((i - j) ** 2)
=== the gradient of a root at distance 0 ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return -torch.sqrt(w[h] ** 2 * (i - j))
=== the gradient of a logarithm that `where` only hides ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes.abs()
        distance = i - j
        return torch.where(distance > 0, -torch.log(w[h] * distance), 0.0)
=== the logarithm of index 0 as a temperature ; PLAIN ; cheat + rope ; temperature
    def temperature(self, index):
        return torch.log(index)
=== a temperature that divides by index 0 ; PLAIN ; cheat + alibi ; temperature
    def temperature(self, index):
        return 1 + 1 / index
=== a mask that hides the query's own key ; PLAIN ; cheat + rope ; mask
    def mask(self, i, j):
        return (i - j > 0) & (i - j < 8)
=== a mask that is True where other libraries hide ; PLAIN ; cheat + alibi ; mask
    def mask(self, i, j):
        return j > i
=== score multiplies what is minus infinity where unseen ; PLAIN ; cheat + alibi ; score
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = nn.Parameter(torch.ones(shape.n_head))

    def score(self, tile):
        return tile.scores + self.slopes[:, None, None] * tile.added
=== score mixes heads without hiding minus infinity ; PLAIN ; cheat + rope ; score
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.mix = nn.Linear(shape.n_head, shape.n_head, bias=False)

    def score(self, tile):
        s = (tile.scores + tile.added).movedim(1, -1)
        return self.mix(s).movedim(-1, 1)
=== turn divides by the position ; PLAIN ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return (ids[:, None].float(),)

    def turn(self, x, tables, is_key):
        return x / tables[0]
=== embed adds the logarithm of the position ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.v = nn.Parameter(0.02 * torch.randn(shape.width))

    def embed(self, ids, tokens, total):
        return ids.float().log()[..., None] * self.v
=== features divide by a deviation that is 0 at the first token ; PLAIN ; cheat ; score
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.n_head, bias=False)

    def features(self, x):
        return self.gate(x)

    def score(self, tile):
        f = tile.features_k
        n = torch.arange(1, f.shape[1] + 1, device=f.device)[:, None]
        mean = f.cumsum(1) / n
        deviation = ((f**2).cumsum(1) / n - mean**2).sqrt()
        return tile.scores + tile.added + ((f - mean) / deviation).mT[:, :, None]
=== a root that is undefined beyond 2 L ; SLOPED ; cheat ; bias ; warns
    def bias(self, h, i, j):
        w, far = self.slopes, 2 * self.length
        return w[h] * torch.sqrt((far - (i - j)))
=== an exponential that overflows beyond 3 L ; SLOPED ; cheat ; bias ; warns
    def bias(self, h, i, j):
        w, scale = self.slopes, 88 / (3 * self.length)
        return w[h] * torch.exp(scale * (i - j))
=== a temperature that is nan beyond L ; PLAIN ; cheat + rope ; temperature ; warns
    def __init__(self, shape: Shape):
        super().__init__()
        self.length = shape.first_length

    def temperature(self, index):
        return 1 + torch.sqrt(1 - index / self.length)
=== a score whose sums overflow beyond 2 L ; PLAIN ; cheat + rope ; score ; warns
    def __init__(self, shape: Shape):
        super().__init__()
        self.rate = 88 / (2 * shape.first_length)

    def score(self, tile):
        weight = torch.exp(self.rate * tile.columns.to(tile.q.dtype))
        return tile.scores + tile.added + weight / weight[tile.rows]
=== a table that is made and never filled ; PLAIN ; cheat ; table
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.empty(128, shape.n_head))

    def bias(self, h, i, j):
        table = self.table
        return table[(i - j).clamp(max=127), h]
""",
)

GRADIENT = planted(
    "gradient",
    """
=== a parameter that nothing reads ; SLOPED ; cheat ; offset
        self.offset = nn.Parameter(torch.zeros(shape.n_head))

    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * (j - i)
=== a parameter copied by new_tensor ; SLOPED ; cheat ; slopes
    def bias(self, h, i, j):
        w = torch.tensor(self.slopes.tolist())
        return w[h] * (j - i)
=== a parameter read as .data ; SLOPED ; cheat ; slopes
    def bias(self, h, i, j):
        w = self.slopes.data
        return w[h] * (j - i)
=== features that are detached ; GATED ; cheat + rope ; gate
    def features(self, x):
        return self.gate(x).detach()
=== a parameter that is rounded ; SLOPED ; cheat ; slopes
    def bias(self, h, i, j):
        w = (8 * self.slopes).round() / 8
        return w[h] * (j - i)
=== a bias of whole numbers from a slope that is cut off ; SLOPED ; cheat ; slopes
    def bias(self, h, i, j):
        w = self.slopes
        return (w[h] * (j - i)).long()
=== a parameter that is an index ; PLAIN ; cheat ; edge
    def __init__(self, shape: Shape):
        super().__init__()
        self.edge = nn.Parameter(torch.full((shape.n_head,), 6.0))
        self.table = nn.Parameter(torch.zeros(shape.n_head, 3))

    def bias(self, h, i, j):
        table, edge = self.table, self.edge
        return table[h, ((i - j) / edge[h]).long().clamp(max=2)]
=== a parameter behind a relu that is never open ; SLOPED ; cheat ; raw
        self.raw = nn.Parameter(torch.full((shape.n_head,), -3.0))

    def bias(self, h, i, j):
        w = self.slopes + F.relu(self.raw)
        return w[h] * (j - i)
=== parameters in a list of Python ; PLAIN ; cheat ; ws
    def __init__(self, shape: Shape):
        super().__init__()
        self.ws = [nn.Parameter(torch.tensor(2.0**-h)) for h in range(shape.n_head)]

    def bias(self, h, i, j):
        w = torch.stack(self.ws)
        return w[h] * (j - i)
=== a linear layer in a dict of Python ; PLAIN ; cheat ; parts
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.parts = {"gate": nn.Linear(shape.width, shape.n_head)}

    def features(self, x):
        return self.parts["gate"](x)

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== a tensor that wants a gradient and is no parameter ; PLAIN ; cheat ; slopes
    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = torch.ones(shape.n_head, requires_grad=True)

    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * (j - i)
=== features are computed without gradients ; GATED ; cheat ; gate
    @torch.no_grad()
    def features(self, x):
        return self.gate(x)
=== a parameter of the second layer that is not used there ; PLAIN ; cheat ; slopes
    per_layer = True
    made = 0

    def __init__(self, shape: Shape):
        super().__init__()
        self.number = type(self).made
        type(self).made += 1
        self.slopes = nn.Parameter(alibi_slopes(shape.n_head))

    def bias(self, h, i, j):
        w = self.slopes
        on = 1.0 if self.number % 2 == 0 else 0.0
        return on * w[h] * (j - i)
""",
)

SHAPE = planted(
    "shape",
    """
=== a bias with the heads last ; PLAIN ; cheat ; bias
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(32, shape.n_head))

    def bias(self, h, i, j):
        table = self.table
        return table[(i - j).clamp(max=31)]
=== a bias with a number for each head and no distance in the right place ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return w * (j - i)
=== a bias for one head too many ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return torch.stack([w[0] * (j - i)] * (len(w) + 1))
=== a bias in half precision ; PLAIN ; cheat ; bias
    def bias(self, h, i, j):
        return -0.1 * (i - j).half()
=== a turn in float64 ; PLAIN ; cheat ; turn
    def __init__(self, shape: Shape):
        super().__init__()
        self.inv_freq = rope_frequencies(shape.turned_width)[0].tolist()

    def tables(self, ids, total, maps=()):
        angles = ids[:, None] * torch.tensor(self.inv_freq, dtype=torch.float64, device=ids.device)
        return angles.cos(), angles.sin()

    def turn(self, x, tables, is_key):
        cos, sin = tables
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
=== a turn of the queries alone that halves the width ; PLAIN ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return ()

    def turn(self, x, tables, is_key):
        return x if is_key else x[..., : x.shape[-1] // 2]
=== a turn that swaps heads and time ; PLAIN ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return (1 + 0.01 * ids.float(),)

    def turn(self, x, tables, is_key):
        return x if is_key else x.transpose(1, 2) * tables[0][:, None, None]
=== a temperature for each head and no query ; PLAIN ; cheat + rope ; temperature
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.s = nn.Parameter(torch.ones(shape.n_head))

    def temperature(self, index):
        return self.s
=== a temperature with a last axis of its own ; PLAIN ; cheat + rope ; temperature
    def temperature(self, index):
        return torch.log(index + 2)[:, None]
=== features that are one token short ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x.diff(dim=1))
=== features without the axis of time ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x[:, 0])
=== features with an axis for the heads ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x)[..., None]
=== score for the queries against each other ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        return tile.q @ tile.q.mT + tile.added
=== embed as wide as one head ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Embedding(4096, shape.turned_width)

    def embed(self, ids, tokens, total):
        return self.table(ids)
=== embed for all tokens so far ; PLAIN ; cheat + rope ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(2, shape.width))

    def embed(self, ids, tokens, total):
        return self.table[tokens % 2]
=== ids below zero, and a table of positions ; PLAIN ; cheat + learned ; ids
    def ids(self, index, total):
        return index - total // 2
=== ids that fall from token to token ; PLAIN ; cheat + alibi ; ids
    def ids(self, index, total):
        return total - 1 - index
=== ids one too many ; PLAIN ; cheat + alibi ; ids
    def ids(self, index, total):
        return torch.cat((index, index[-1:] + 1), -1)
=== draw in no order ; PLAIN ; cheat + alibi ; draw
    def draw(self, length, generator):
        return torch.randperm(4 * length, generator=generator)[:length]
=== draw as many as it was made for, and one ; PLAIN ; cheat + rope ; draw
    def draw(self, length, generator):
        return torch.randperm(4 * length, generator=generator)[: length + 1].sort().values
=== a mask of numbers to be added ; PLAIN ; cheat + rope ; mask
    def mask(self, i, j):
        return torch.where(i - j < 8, 0.0, -math.inf)
=== a gate in float64 ; PLAIN ; cheat ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = nn.Parameter(0.1 * torch.randn(shape.width, shape.n_head).double())

    def features(self, x):
        return x @ self.gate

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
""",
)

PATHS = planted(
    "paths",
    """
=== turn counts from the first token of the call ; PLAIN ; cheat ; turn
    def __init__(self, shape: Shape):
        super().__init__()
        self.inv_freq = rope_frequencies(shape.turned_width)[0]

    def tables(self, ids, total, maps=()):
        return (self.inv_freq.to(ids.device),)

    def turn(self, x, tables, is_key):
        return rotate(x, torch.arange(x.shape[-2], device=x.device), tables[0])
=== outputs are turned back from the first token of the call ; ROPE ; cheat ; turn_back
    def turn_back(self, y, tables):
        cos, sin = self.tables(torch.arange(y.shape[-2], device=y.device), 1)
        return apply_rotary(y, cos, -sin, self.layout)
=== turn takes the first rows of a table it has kept ; ROPE ; cheat ; turn
    made = None

    def tables(self, ids, total, maps=()):
        if self.made is None or len(self.made[0]) < len(ids):
            self.made = super().tables(torch.arange(len(ids)), total, maps)
        return tuple(table[: len(ids)] for table in self.made)
=== turn scales by the largest position of the call ; ROPE ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return super().tables(ids * 16 // ids.max().clamp(min=1), total, maps)
=== a temperature by the number of queries ; PLAIN ; cheat + rope ; temperature
    def temperature(self, index):
        return torch.ones_like(index) * math.log(len(index) + 1)
=== score by the number of keys in the tile ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        return tile.scores * math.log(tile.k.shape[2] + 1) + tile.added
=== score by the number of rows in the tile ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        return tile.scores * math.log(tile.q.shape[2] + 1) + tile.added
=== score takes the first features for those of the queries ; GATED ; cheat ; score
    def features(self, x):
        return self.gate(x)

    def score(self, tile):
        f = tile.features_k.mT  # (B, H, C)
        rows = tile.q.shape[2]
        return tile.scores + tile.added - (f[..., :rows, None] - f[..., None, :]).abs()
=== score makes its own triangle from the corner ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        rows, keys = tile.scores.shape[-2:]
        seen = torch.ones(rows, keys, device=tile.q.device).tril() > 0
        return torch.where(seen, tile.scores + tile.added, -1e4)
=== score numbers its rows from 0 ; PLAIN ; cheat ; score
    def score(self, tile):
        i = torch.arange(tile.q.shape[2], device=tile.q.device)[:, None]
        return tile.scores - 0.1 * (i - tile.columns).abs() + tile.added
=== features are a running sum within the call ; GATED ; cheat ; features
    def features(self, x):
        return F.logsigmoid(self.gate(x)).cumsum(1)
=== features shift tokens within the call ; GATED ; cheat + alibi ; features
    def features(self, x):
        return self.gate(F.pad(x[:, :-1], (0, 0, 1, 0)))
=== features convolve within the call ; PLAIN ; cheat ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.conv = nn.Conv1d(shape.width, shape.n_head, 3, bias=False)

    def features(self, x):
        return self.conv(F.pad(x.mT, (2, 0))).mT

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== features number the tokens of the call ; GATED ; cheat ; features
    def features(self, x):
        return self.gate(x) * torch.arange(1, x.shape[1] + 1, device=x.device)[:, None] / 8
=== embed takes the first tokens for the new ones ; PLAIN ; cheat + rope ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(64, shape.width))

    def embed(self, ids, tokens, total):
        return self.table[tokens[:, : ids.shape[-1]] % 64]
=== embed is off by one once there is a cache ; PLAIN ; cheat + rope ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(64, shape.width))

    def embed(self, ids, tokens, total):
        new = ids.shape[-1]
        before = F.pad(tokens, (1, 0))[:, :new]
        if tokens.shape[1] > new:
            before = tokens[:, -new:]
        return self.table[before % 64]
=== embed numbers the tokens of the call ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(4096, shape.width))

    def embed(self, ids, tokens, total):
        return self.table[torch.arange(ids.shape[-1], device=ids.device)]
=== ids by the tokens seen so far, not by the total ; PLAIN ; cheat + alibi ; ids
    def ids(self, index, total):
        return index * 16 // index.shape[-1]
=== ids change the index that they were given ; PLAIN ; cheat + alibi ; ids
    def ids(self, index, total):
        index *= 2
        return index
=== a bias by the distance from the last key of the tile ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        last = j.shape[-1] - 1
        return -w[h] * torch.sqrt((last - j).clamp(min=0))
=== a bias by the share of the largest distance ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return -4 * w[h] * (i - j) / (i - j).max().clamp(min=1)
=== a bias that numbers the rows of the tile ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        rows = torch.arange(i.shape[-2], device=i.device)[:, None]
        return -w[h] * (rows - j).abs()
=== a bias that counts the keys of the tile by a running sum ; SLOPED ; cheat + window(size=4) ; bias
    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * torch.ones_like((i - j) * w[h]).cumsum(-1).sqrt()
=== a bias from a matrix that starts at the corner of the tile ; PLAIN ; cheat ; bias
    def __init__(self, shape: Shape):
        super().__init__()
        index = torch.arange(512)
        matrix = -0.05 * (index[:, None] - index).abs().float()
        self.register_buffer("matrix", matrix, persistent=False)

    def bias(self, h, i, j):
        matrix = self.matrix
        return matrix[: i.shape[-2], : j.shape[-1]]
=== a mask that sees farther than its span ; PLAIN ; cheat + alibi ; visible
    visible = (4, 0)

    def mask(self, i, j):
        return i - j < 8
=== a span without a mask ; SLOPED ; cheat ; visible
    visible = (4, 0)

    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * (j - i)
=== a mask that shares out the rows of the tile ; PLAIN ; cheat + rope ; mask
    def mask(self, i, j):
        return (j == i) | (j >= i.shape[-2] // 2)
=== a temperature that counts up the index that it was given ; PLAIN ; cheat + alibi ; temperature
    def temperature(self, index):
        index += 1
        return torch.log(index + 1)
=== embed looks ahead where a cache is given several tokens ; PLAIN ; cheat + rope ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(64, shape.width))

    def embed(self, ids, tokens, total):
        new = tokens[:, -ids.shape[-1] :]
        if tokens.shape[1] > new.shape[1]:
            new = torch.cat((new[:, 1:], new[:, -1:]), 1)
        return self.table[new % 64]
=== score looks ahead in every block but the first ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        s = tile.scores
        if s.shape[-1] > s.shape[-2] > 1:
            s = s / s.std(-1, keepdim=True).clamp(min=1e-3)
        return s + tile.added
""",
)

NAME = planted(
    "name",
    """
=== biass is no method of a scheme: bias ; PLAIN ; cheat ; biass
    def biass(self, h, i, j):
        return 0.1 * (j - i)
=== get_bias is no method of a scheme: bias ; PLAIN ; cheat ; get_bias
    def get_bias(self, h, i, j):
        return 0.1 * (j - i)
=== temprature is no method of a scheme: temperature ; PLAIN ; cheat ; temprature
    def temprature(self, index):
        return torch.ones_like(index)
=== masks is no method of a scheme: mask ; PLAIN ; cheat + rope ; masks
    def masks(self, i, j):
        return i - j < 8
=== features_ is no method of a scheme: features ; PLAIN ; cheat ; features_
    def features_(self, x):
        return x
=== embedding is no method of a scheme: embed ; PLAIN ; cheat ; embedding
    def embedding(self, ids, tokens, total):
        return ids[:, None].float()
=== scores is no method of a scheme: score ; PLAIN ; cheat ; scores
    def scores(self, tile):
        return tile.scores + tile.added
=== rotate is no method of a scheme: turn ; PLAIN ; cheat ; rotate
    def rotate(self, x, tables, is_key):
        return x
=== position_ids is no method of a scheme: ids ; PLAIN ; cheat + rope ; position_ids
    def position_ids(self, index, total):
        return 2 * index
=== draws is no method of a scheme: draw ; PLAIN ; cheat + rope ; draws
    def draws(self, length, generator):
        return torch.arange(length)
=== forward is no method of a scheme: bias ; PLAIN ; cheat ; forward
    def forward(self, x):
        return x + 1
=== frequency is no method of a rotary scheme: frequencies ; ROPE ; cheat ; frequency
    def frequency(self, total, maps=(), ids=None):
        return rope_frequencies(2 * len(self.inv_freq), 500.0)
=== features without a score that reads them ; PLAIN ; cheat + rope ; features
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.conv = nn.Linear(shape.width, shape.width, bias=False)

    def features(self, x):
        return self.conv(x)
=== frequencies of a piece that turns nothing ; PLAIN ; cheat ; frequencies
    def __init__(self, shape: Shape):
        super().__init__()
        self.width = shape.turned_width

    def frequencies(self, total, maps=(), ids=None):
        return rope_frequencies(self.width, 500.0)
=== perlayer is no attribute of a scheme: per_layer ; PLAIN ; cheat ; perlayer
    perlayer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = nn.Parameter(alibi_slopes(shape.n_head))

    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * (j - i)
""",
)

LENGTH = planted(
    "length",
    """
=== a matrix [L, L] that 4 L cannot index ; PLAIN ; cheat ; bias
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(shape.first_length, shape.first_length))

    def bias(self, h, i, j):
        table = self.table
        return table[i, j]
=== a table of distances that ends at L ; PLAIN ; cheat ; bias
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(shape.n_head, shape.first_length))

    def bias(self, h, i, j):
        table = self.table
        return table[h, i - j]
=== a table of distances that is counted from its end ; PLAIN ; cheat ; bias
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(shape.n_head, shape.first_length))

    def bias(self, h, i, j):
        table = self.table
        return table[h, table.shape[1] - 1 - (i - j)]
=== a table of vectors that ends at L ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Embedding(shape.first_length, shape.width)

    def embed(self, ids, tokens, total):
        return self.table(ids)
=== tables of cosines that end at L ; ROPE ; cheat ; turn
    def __init__(self, shape: Shape):
        super().__init__(shape)
        cos, sin = super().tables(torch.arange(shape.first_length), shape.first_length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def tables(self, ids, total, maps=()):
        return self.cos[ids], self.sin[ids]
=== a temperature for each index below L ; PLAIN ; cheat + rope ; temperature
    def __init__(self, shape: Shape):
        super().__init__()
        self.s = nn.Parameter(torch.ones(shape.first_length))

    def temperature(self, index):
        return self.s[index]
=== a mask from a matrix [L, L] ; PLAIN ; cheat + rope ; mask
    def __init__(self, shape: Shape):
        super().__init__()
        index = torch.arange(shape.first_length)
        near = index[:, None] - index < 8
        self.register_buffer("near", near, persistent=False)

    def mask(self, i, j):
        return self.near[i, j]
=== a limit below L ; PLAIN ; cheat ; limit
    def __init__(self, shape: Shape):
        super().__init__()
        self.limit = shape.first_length // 2
        self.table = nn.Embedding(self.limit, shape.width)

    def embed(self, ids, tokens, total):
        return self.table(ids)
=== a limit above what the table holds ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.limit = 4 * shape.first_length
        self.table = nn.Embedding(2 * shape.first_length, shape.width)

    def embed(self, ids, tokens, total):
        return self.table(ids)
=== a table that is one row short of L ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Embedding(shape.first_length - 1, shape.width)

    def embed(self, ids, tokens, total):
        return self.table(ids)
=== an assertion that the text is no longer than L ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        assert j.shape[-1] <= self.length
        return w[h] * (j - i)
""",
)

RANDOM = planted(
    "random",
    """
=== a bias with noise at every call ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        w = w + 0.1 * torch.rand_like(w)
        return w[h] * (j - i)
=== dropout on features that is never switched off ; GATED ; cheat ; features
    def features(self, x):
        return F.dropout(self.gate(x), 0.2)
=== embed at a random place, also at test ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(4096, shape.width))

    def embed(self, ids, tokens, total):
        return self.table[ids + int(torch.randint(64, ()))]
=== turn by random signs ; PLAIN ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return (torch.randn(len(ids), 1, device=ids.device).sign(),)

    def turn(self, x, tables, is_key):
        return x if is_key else x * tables[0]
=== ids with random gaps, also at test ; PLAIN ; cheat + rope ; ids
    def ids(self, index, total):
        return index + torch.randint(2, index.shape, device=index.device).cumsum(-1)
=== draw without its generator ; PLAIN ; cheat + rope ; draw
    def draw(self, length, generator):
        return torch.randperm(4 * length)[:length].sort().values
=== a bias that sets the seed of everybody ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        torch.manual_seed(0)
        w = self.slopes + 0.1 * torch.rand_like(self.slopes)
        return w[h] * (j - i)
=== slopes that shrink from call to call ; SLOPED ; cheat ; bias
    calls = 0

    def bias(self, h, i, j):
        self.calls += 1
        w = self.slopes / self.calls
        return w[h] * (j - i)
=== features add those of the call before ; GATED ; cheat ; features
    last = None

    def features(self, x):
        gate = self.gate(x)
        before = 0 if self.last is None or self.last.shape != gate.shape else self.last
        self.last = gate.detach()
        return gate + before
=== a running mean in a global variable ; MEAN ; cheat ; features
    def features(self, x):
        gate = self.gate(x)
        MEAN[0] = 0.9 * MEAN[0] + 0.1 * float(gate.detach().mean())
        return gate * (1 + MEAN[0])
=== score changes its parameter while it computes ; PLAIN ; cheat + rope ; score
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def score(self, tile):
        self.scale.mul_(1.01)
        return tile.scores * self.scale + tile.added
=== a bias by the clock ; CLOCK ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes * (1 + time.perf_counter() % 1)
        return w[h] * (j - i)
=== embed changes the tokens that it reads ; PLAIN ; cheat + rope ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(64, shape.width))

    def embed(self, ids, tokens, total):
        before = tokens.remainder_(64)
        return self.table[before[:, -ids.shape[-1] :]]
""",
)

COMPILE = planted(
    "compile",
    """
=== a bias that asks for the largest distance ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        if (i - j).max() > 2 * self.length:
            return 1.0 * w[h] * (j - i).clamp(min=-2 * self.length)
        return w[h] * (j - i).clamp(min=-2 * self.length)
=== a slope that is read as a number of Python ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes
        steep = w.mean().item() > 0
        return w[h] * (j - i) * (1.0 if steep else 0.5)
=== embed that goes through the line breaks in a loop ; PLAIN ; cheat + rope ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.vector = nn.Parameter(0.1 * torch.randn(shape.width))

    def embed(self, ids, tokens, total):
        new = tokens[:, -ids.shape[-1] :]
        marks = torch.zeros(*new.shape, 1, device=new.device)
        for b, t in torch.nonzero(new % 8 == 2).tolist():  # a line break is token 10
            marks[b, t] = 1.0
        return marks * self.vector
=== score that leaves out keys by a boolean index ; PLAIN ; cheat + rope ; score
    def score(self, tile):
        found = tile.scores + tile.added
        found = found.clone()
        strong = found > 4.0
        if strong.any():
            found[strong] = 4.0
        return found
""",
)

ERROR = planted(
    "error",
    """
=== a bias that is a number of Python ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        return -0.1
=== a bias without return ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        self.slopes[h] * (j - i)
=== a bias that is the matrix itself ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        return self.slopes[:, None, None]
=== a bias of i and j alone ; SLOPED ; cheat ; bias
    def bias(self, i, j):
        return -0.1 * (i - j)
=== a bias that calls itself ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        return self.bias(h, i, j)
=== a bias that wants the length ; SLOPED ; cheat ; bias
    def bias(self, h, i, j, length):
        return 0.1 * (j - i)
=== a bias that reads a name it never set ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        return self.slope[h] * (j - i)
=== a bias that asks whether the head is 0 ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        return (j - i) * (1.0 if h == 0 else 0.5)
=== a bias that looks a head up in a list ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = self.slopes.tolist()
        return w[h] * (j - i)
=== a bias that looks a distance up in a dict ; SLOPED ; cheat ; bias
    def bias(self, h, i, j):
        w = {0: 1.0}
        return w[i - j]
=== a mask that gives a function ; PLAIN ; cheat + rope ; mask
    def mask(self):
        return lambda i, j: i - j < 8
=== a span that is one number ; PLAIN ; cheat + alibi ; visible
    visible = 8

    def mask(self, i, j):
        return i - j < 8
=== one turn for both queries and keys ; ROPE ; cheat ; turn
    def turn(self, x, tables):
        return super().turn(x, tables, True)
=== a turn that takes no frequency maps ; PLAIN ; cheat ; turn
    def tables(self, ids, total):
        return ()

    def turn(self, x, tables, is_key):
        return x
=== a turn that writes into the queries ; PLAIN ; cheat ; turn
    def tables(self, ids, total, maps=()):
        return (1 + 0.01 * ids[:, None],)

    def turn(self, x, tables, is_key):
        x *= tables[0]
        return x
=== a temperature that is a number of Python ; PLAIN ; cheat + rope ; temperature
    def temperature(self, index):
        return math.log(16)
=== features that were never made ; PLAIN ; cheat ; score
    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== an embed that takes the ids alone ; PLAIN ; cheat ; embed
    def embed(self, ids):
        return 0.01 * ids[:, None]
=== ids that take the index alone ; PLAIN ; cheat + rope ; ids
    def ids(self, index):
        return 2 * index
=== a draw that takes the length alone ; PLAIN ; cheat + rope ; draw
    def draw(self, length):
        return torch.arange(length)
=== frequencies without the attention factor ; ROPE ; cheat ; frequencies
    def frequencies(self, total, maps=(), ids=None):
        return self.inv_freq
=== features that write into their input ; GATED ; cheat ; features
    def features(self, x):
        x -= x.mean(-1, keepdim=True)
        return self.gate(x)
=== a table that real positions cannot index ; PLAIN ; rfs + cheat ; bias
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4096, shape.n_head))

    def bias(self, h, i, j):
        table = self.table
        return table[i - j, h]
=== no super().__init__() ; PLAIN ; cheat ; __init__
    def __init__(self, shape: Shape):
        self.slopes = nn.Parameter(alibi_slopes(shape.n_head))

    def bias(self, h, i, j):
        return self.slopes[h] * (j - i)
=== an __init__ without the shape ; PLAIN ; cheat ; __init__
    def __init__(self):
        super().__init__()

    def bias(self, h, i, j):
        return 0.1 * (j - i)
=== slopes that stay where they were made ; PLAIN ; cheat ; bias
    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = alibi_slopes(shape.n_head)  # no buffer: .to(device) leaves it on the CPU

    def bias(self, h, i, j):
        return self.slopes[h] * (j - i)
=== positions that are made on the CPU ; PLAIN ; cheat ; embed
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(4096, shape.width))

    def embed(self, ids, tokens, total):
        start = total - tokens.shape[1]
        return self.table[ids] * (1 + torch.zeros(len(ids), 1).add(start).clamp(max=0))
""",
)

PLANTED = (
    CAUSAL + BATCH + FINITE + GRADIENT + SHAPE + PATHS + NAME + LENGTH + RANDOM + COMPILE + ERROR
)

HONEST = tuple(
    Honest(*parts[:3])
    for parts in schemes('''
=== a gate that forgets by what is read ; OWN ; mine
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.n_head)

    def features(self, x):
        return F.logsigmoid(self.gate(x).float())

    def score(self, tile):
        c = tile.features_k.mT.cumsum(-1)
        return tile.scores + tile.added + (c[..., tile.rows[:, 0], None] - c[..., None, :])
=== a causal convolution of the features in score ; OWN ; mine + alibi
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.n_head, bias=False)
        self.taps = nn.Parameter(0.3 * torch.randn(shape.n_head, 1, 3))

    def features(self, x):
        return self.gate(x)

    def score(self, tile):
        f = F.pad(tile.features_k.mT, (2, 0))
        f = F.conv1d(f, self.taps.to(f.dtype), groups=len(self.taps))
        return tile.scores + tile.added + f[:, :, None]
=== gates summed over the keys between, those ahead masked ; OWN ; mine
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(shape.n_head))

    def score(self, tile):
        gates = torch.sigmoid(tile.scores).masked_fill(~tile.seen, 0.0)
        between = gates.flip(-1).cumsum(-1).flip(-1)
        return tile.scores + tile.added - self.slope.to(gates.dtype)[:, None, None] * between
=== a score relative to the mean over the keys that are seen ; OWN ; mine + rope
    def score(self, tile):
        s = tile.scores.masked_fill(~tile.seen, 0.0)
        seen = tile.seen.expand_as(s).to(s.dtype)
        mean = s.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
        centred = (tile.scores - mean).masked_fill(~tile.seen, 0.0)
        return 4 * torch.tanh(centred / 4) + tile.added
=== a table of distances, limited to L ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.limit = shape.first_length
        self.table = nn.Parameter(torch.zeros(shape.first_length, shape.n_head))

    def bias(self, h, i, j):
        table = self.table
        return table[i - j, h]
=== a matrix [L, L], limited to L ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.limit = shape.first_length
        self.matrix = nn.Parameter(torch.zeros(shape.n_head, shape.first_length, shape.first_length))

    def bias(self, h, i, j):
        matrix = self.matrix
        return matrix[h, i, j]
=== a table of vectors, limited to L ; OWN ; mine + alibi
    def __init__(self, shape: Shape):
        super().__init__()
        self.limit = shape.first_length
        self.table = nn.Embedding(shape.first_length, shape.width)

    def embed(self, ids, tokens, total):
        return self.table(ids)
=== positions that are squeezed into L by the total ; OWN ; mine + rope
    def __init__(self, shape: Shape):
        super().__init__()
        self.length = shape.first_length

    def ids(self, index, total):
        return index * (self.length / max(total, self.length))
=== positions that grow as a root, in float64 ; OWN ; mine + rope
    def ids(self, index, total):
        return torch.sqrt(index.double())
=== one position for each pair of tokens, from 7 on ; OWN ; mine + alibi
    def ids(self, index, total):
        return index // 2 + 7
=== a random shift at each step, by the generator ; OWN ; mine + sinusoidal
    def draw(self, length, generator):
        return torch.arange(length) + torch.randint(512, (1,), generator=generator)
=== random gaps in training, even gaps at test ; OWN ; mine + rope
    def __init__(self, shape: Shape, *, gap: int = 3):
        super().__init__()
        self.gap = gap

    def ids(self, index, total):
        return index * self.gap // 2

    def draw(self, length, generator):
        return torch.randint(1, self.gap + 1, (length,), generator=generator).cumsum(0)
=== a vector for the token before ; OWN ; mine + rope
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(64, shape.width))

    def embed(self, ids, tokens, total):
        before = F.pad(tokens[:, :-1], (1, 0))
        return self.table[before[:, -ids.shape[-1] :] % 64]
=== positions within the line ; OWN ; mine + alibi
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(128, shape.width))

    def embed(self, ids, tokens, total):
        index = torch.arange(tokens.shape[1], device=ids.device).expand_as(tokens)
        start = index.where(tokens == 10, 0).cummax(1).values
        return self.table[(index - start).clamp(max=127)[:, -ids.shape[-1] :]]
=== counts of the token so far ; OWN ; mine + rope
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(16, shape.width))

    def embed(self, ids, tokens, total):
        new = tokens[:, -ids.shape[-1] :]
        same = new[:, :, None] == tokens[:, None]
        index = torch.arange(tokens.shape[1], device=ids.device)
        before = index <= index[-ids.shape[-1] :, None]
        return self.table[(same & before).sum(-1).clamp(max=15)]
=== a window with sinks that says its span ; OWN ; mine + alibi
    visible = (6, 2)

    def mask(self, i, j):
        return (i - j < 6) | (j < 2)
=== every fourth key and the last few ; OWN ; mine + rope
    def mask(self, i, j):
        return (i - j < 4) | ((i - j) % 4 == 0)
=== a mask for each part of the text ; OWN ; mine + rope
    def mask(self, i, j):
        return (i // 8 == j // 8) | (j % 8 == 7)
=== a product of two matrices, one of them zero at first ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.down = nn.Parameter(torch.randn(128, 4))
        self.up = nn.Parameter(torch.zeros(4, shape.n_head))

    def bias(self, h, i, j):
        table = (self.down @ self.up)
        return table[(i - j).clamp(max=127), h]
=== a product of two matrices, both zero at first ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.down = nn.Parameter(torch.zeros(128, 4))
        self.up = nn.Parameter(torch.zeros(4, shape.n_head))

    def bias(self, h, i, j):
        table = (self.down @ self.up)
        return table[(i - j).clamp(max=127), h]
=== a slope for each head of each layer ; OWN ; mine + rope
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(shape.n_head))

    def bias(self, h, i, j):
        w = F.softplus(self.raw)
        return w[h] * (j - i)
=== a pattern over the layers ; OWN ; rope | mine | nope
    def __init__(self, shape: Shape, *, power: float = 0.5):
        super().__init__()
        self.slopes, self.power = alibi_slopes(shape.n_head).tolist(), power

    def bias(self, h, i, j):
        w = torch.tensor(self.slopes, device=j.device)
        return -w[h] * (i - j) ** self.power
=== the logarithm of the distance, clamped first ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = nn.Parameter(torch.ones(shape.n_head))

    def bias(self, h, i, j):
        w = self.slopes
        return -w[h] * torch.log((i - j).clamp(min=1))
=== a huge and finite penalty ; OWN ; mine + rope
    def bias(self, h, i, j):
        return torch.where(i - j < 8, 0.0, -1e30)
=== minus infinity for some keys, never for all ; OWN ; mine + rope
    def bias(self, h, i, j):
        return torch.where((i - j) % (h + 2) == 0, 0.0, -math.inf)
=== a bias of whole numbers ; OWN ; mine + rope
    def bias(self, h, i, j):
        return (j - i) // 4
=== a bias of absolute positions ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = nn.Parameter(0.1 * torch.randn(shape.n_head))

    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * torch.cos(0.3 * j) * torch.sin(0.1 * i)
=== a small network with an offset that the softmax cancels ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.inner, self.outer = nn.Linear(1, 8), nn.Linear(8, shape.n_head)

    def bias(self, h, i, j):
        w, b = self.inner.weight[:, 0], self.inner.bias
        out, start = self.outer.weight, self.outer.bias
        x = torch.log1p(i - j)
        return start[h] + sum(out[h, m] * torch.tanh(w[m] * x + b[m]) for m in range(8))
=== a table with rows that no text of L reaches ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4096, shape.n_head))

    def bias(self, h, i, j):
        table = self.table
        return table[(i - j).clamp(max=4095), h]
=== a parameter that is frozen on purpose ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = nn.Parameter(alibi_slopes(shape.n_head), requires_grad=False)

    def bias(self, h, i, j):
        w = self.slopes
        return w[h] * (j - i)
=== dropout of the features in training ; OWN ; mine + alibi
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.gate, self.drop = nn.Linear(shape.width, shape.n_head, bias=False), nn.Dropout(0.1)

    def features(self, x):
        return self.drop(self.gate(x))

    def score(self, tile):
        return tile.scores + tile.added + tile.features_k.mT[:, :, None]
=== a random place in a table in training ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(1024, shape.width))

    def embed(self, ids, tokens, total):
        shift = torch.randint(64, (), device=ids.device) if self.training else 0
        return self.table[ids + shift]
=== tensors made once, moved where they are needed ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.slopes = alibi_slopes(shape.n_head)
        self.register_buffer("scale", torch.ones(shape.n_head), persistent=False)

    def bias(self, h, i, j):
        w = self.slopes.to(j.device) * self.scale
        return w[h] * (j - i)
=== numbers that are kept for each total length ; OWN ; mine + rope
    def __init__(self, shape: Shape):
        super().__init__()
        self.length, self.known = shape.first_length, {}

    def ids(self, index, total):
        if total not in self.known:
            self.known[total] = max(1, -(-total // self.length))
        return index // self.known[total]
=== helpers with names near those of methods ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(shape.n_head))

    def biases(self):
        return F.softplus(self.raw)

    def distance(self, i, j):
        return torch.log1p(i - j)

    @property
    def slopes(self):
        return F.softplus(self.raw).tolist()

    def extra_repr(self):
        return f"slopes={self.slopes}"

    def bias(self, h, i, j):
        w = self.biases()
        return -w[h] * self.distance(i, j)
=== a base that follows the total ; OWN_ROPE ; mine
    def __init__(self, shape: Shape, *, base: float = 10000.0):
        super().__init__(shape, base=base)
        self.length = shape.first_length

    def frequencies(self, total, maps=(), ids=None):
        longer = max(1.0, total / self.length)
        return rope_frequencies(2 * len(self.inv_freq), self.base * longer**2)
=== queries and keys that are turned each in its own way, into more columns ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.rates = (0.5 ** torch.arange(shape.turned_width)).tolist()

    def tables(self, ids, total, maps=()):
        angles = ids[..., None] * torch.tensor(self.rates, device=ids.device)
        return angles.cos(), angles.sin()

    def turn(self, x, tables, is_key):
        cos, sin = tables
        x = torch.tanh(x) if is_key else F.softplus(x)
        return torch.cat((x * cos, x * sin), -1)
=== values are turned, and outputs half as far back ; OWN_ROPE ; mine
    def turn_back(self, y, tables):
        cos, sin = tables
        half = torch.atan2(sin, cos) / 2
        return apply_rotary(y, half.cos(), -half.sin(), self.layout)
=== queries and keys of length one ; OWN_ROPE ; mine
    def turn(self, x, tables, is_key):
        x = F.normalize(x, dim=-1)
        return super().turn(x if is_key else 4 * x, tables, is_key)
=== a learned temperature by the number of keys ; OWN ; mine + rope
    per_layer = True

    def __init__(self, shape: Shape):
        super().__init__()
        self.s = nn.Parameter(torch.zeros(shape.n_head))

    def temperature(self, index):
        return 1 + self.s[:, None] * torch.log(index + 1)
=== nothing is overridden ; OWN ; mine + rope
    """A name for what rope does alone."""
=== a bias for long texts and another for short ones ; OWN ; mine
    def __init__(self, shape: Shape):
        super().__init__()
        self.length = shape.first_length
        self.slopes = nn.Parameter(alibi_slopes(shape.n_head))

    def bias(self, h, i, j):
        w, near = self.slopes, self.length
        return -w[h] * torch.where(i - j < near, i - j, near + (i - j) // 8)
''')
)
