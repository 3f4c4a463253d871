"""Every position scheme a second time: its paper's formula in plain Python floats.

Nothing here imports the project's code. `ORACLES` makes for each mention, such as rope(p=0.5), its
parts from the values of its parameters; comments say where formulas are from. `attention` puts parts
together: what the heads of a layer give.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

H, D, L = 2, 8, 8  # heads, columns of a head, training length
C = H * D
Weights = Mapping[str, ndarray]
Vector = Sequence[float]
# What a scheme does, by name. i and j are position ids, but for `temperature` and `sees` indexes.
#   ids(index, total) -> position            embed(ids, tokens) -> (T, C)
#   turn_q, turn_k(head, vector, position)   temperature(head, index), bias(head, i, j)
#   sees(i, j) -> bool                       score(Seen) -> (H, T, T)
#   weights(head, scores) -> (T,), of a query's scores (T,) that are -inf where unseen
#   value(head, v, distance) -> (D,), what a query gets of the value v (D,) at j - i = distance
#   output(head, y, v, x) -> (D,), of a token's y (D,), its value v (D,) and the input x (C,)
#   mix_PLACE(x) -> (T, W), of the vectors x (T, W) at a place of a layer
Parts = dict[str, Callable]


@dataclass(frozen=True)
class Seen:
    """What a whole score is made from.

    q and k (H, T, D) are turned, and q is multiplied by its temperature; x (T, C), scores and bias
    (H, T, T).
    """

    q: ndarray
    k: ndarray
    x: ndarray
    ids: Sequence[float]
    scores: ndarray
    bias: ndarray


def text(length):
    """The tokens on which a model is compared: among them are numbers and ends of sentences."""
    return [4, 3, 15, 12, 5, 9, *range(length - 6)]


def combined(parts):
    """Parts that act together: temperatures multiply, biases add, masks intersect.

    Any other place has one part.
    """
    joined: Parts = {}
    for name in {name for part in parts for name in part}:
        fs = [part[name] for part in parts if name in part]
        if name == "temperature":
            joined[name] = lambda h, i, fs=fs: math.prod(f(h, i) for f in fs)
        elif name == "bias":
            joined[name] = lambda h, i, j, fs=fs: sum(f(h, i, j) for f in fs)
        elif name == "sees":
            joined[name] = lambda i, j, fs=fs: all(f(i, j) for f in fs)
        else:
            (joined[name],) = fs
    return joined


def logits(parts, q, k, x, ids):
    """The scores that the softmax receives, (H, T, T), -inf where unseen.

    q and k are (H, T, D), x is (T, C).
    """
    heads, count, width = q.shape

    def turned(name, vectors):
        if name not in parts:
            return vectors
        rows = [
            [parts[name](h, list(vectors[h, t]), ids[t]) for t in range(count)]
            for h in range(heads)
        ]
        return np.array(rows)

    q, k = turned("turn_q", q), turned("turn_k", k)
    heat = np.ones((heads, count))
    bias = np.full((heads, count, count), -math.inf)
    for h, i in itertools.product(range(heads), range(count)):
        if "temperature" in parts:
            heat[h, i] = parts["temperature"](h, i)
        for j in range(i + 1):
            if "sees" not in parts or parts["sees"](i, j):
                bias[h, i, j] = parts["bias"](h, ids[i], ids[j]) if "bias" in parts else 0.0
    q = q * heat[..., None]
    scores = np.where(bias > -math.inf, q @ k.swapaxes(1, 2) / math.sqrt(width), -math.inf)
    found = scores + bias
    if "score" in parts:
        found = parts["score"](Seen(q, k, x, ids, scores, bias))
    return np.where(bias == -math.inf, -math.inf, found)


def attention(parts, scores, v, x, ids=()):
    """What the heads give, (H, T, D): the softmax of scores (H, T, T), times values (H, T, D).

    Parts may have other weights, change values by the distance of their position ids (T,), or the
    output by v and x (T, C).
    """
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    if "weights" in parts:
        weights = np.array(
            [[parts["weights"](h, r) for r in rows] for h, rows in enumerate(scores)]
        )
    y = weights @ v
    if "value" in parts:
        y = np.zeros(v.shape)
        for h, i, j in zip(*np.nonzero(weights), strict=True):
            y[h, i] += weights[h, i, j] * np.array(parts["value"](h, v[h, j], ids[j] - ids[i]))
    if "output" in parts:
        places = np.ndindex(y.shape[:2])
        changed = [parts["output"](h, y[h, t], v[h, t], x[t]) for h, t in places]
        y = np.array(changed).reshape(y.shape)
    return y


# ---- rotations: cos and sin are float32 tables of float64 angles, as the project decided; all else
# is float64


def cos_sin(angle):
    """cos and sin as the tables hold them."""
    return float(np.float32(math.cos(angle))), float(np.float32(math.sin(angle)))


def pairs_turned(x, angles, layout="half", table=True):
    """x with pair m turned by angles[m]; columns past the pairs unchanged."""
    y, n = list(x), len(angles)
    for m, angle in enumerate(angles):
        a, b = (m, m + n) if layout == "half" else (2 * m, 2 * m + 1)
        cos, sin = cos_sin(angle) if table else (math.cos(angle), math.sin(angle))
        y[a], y[b] = x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin
    return y


def theta(base=10000.0, columns=D):
    """RoPE's angles per position."""
    return [base ** (-2 * m / columns) for m in range(columns // 2)]


def rotary(frequencies, layout="half"):
    """Queries and keys alike turned by position x frequency."""

    def turn(h, x, p):
        return pairs_turned(x, [p * f for f in frequencies], layout)

    return lambda w: dict(turn_q=turn, turn_k=turn)


def imaginary(w):
    """RoPE++ with queries of their own: in odd heads a quarter further back."""

    def turn_q(h, x, p):
        y = pairs_turned(x, [p * f for f in theta()])
        return [*y[D // 2 :], *(-a for a in y[: D // 2])] if h % 2 else y

    return dict(turn_q=turn_q, turn_k=rotary(theta())(w)["turn_k"])


def clipped(frequencies, n):
    """The slowest n times a half cosine from 1 to 0."""
    kept = len(frequencies) - n
    taper = [(1 + math.cos(math.pi * t / (n - 1) if n > 1 else 0.0)) / 2 for t in range(n)]
    return [*frequencies[:kept], *(f * t for f, t in zip(frequencies[kept:], taper, strict=True))]


def rotary_values(frequencies, layout="half"):
    """RoVE: values, too, are turned by their distance from the query."""

    def value(h, x, distance):
        return pairs_turned(x, [distance * f for f in frequencies], layout)

    return lambda w: dict(rotary(frequencies, layout)(w), value=value)


# ---- biases

SLOPES = [1 / 16, 1 / 256]  # ALiBi's of two heads: 2^(-8h/2)


def buckets(distance, count, far):
    """T5's causal bucket, in the order of operations of its code: float32 logarithms."""
    exact, d = count // 2, math.floor(distance)
    if d < exact:
        return d
    scaled = (
        np.log(np.float32(d) / np.float32(exact))
        / np.float32(math.log(far / exact))
        * np.float32(count - exact)
    )
    return min(count - 1, exact + int(scaled))


def softplus(z):
    """ln(1 + e^z)."""
    return math.log1p(math.exp(z))


def sigmoid(z):
    """1 / (1 + e^-z)."""
    return 1 / (1 + math.exp(-z))


# ---- rotations of other kinds


def fourier(w, base, rest):
    """FoPE: the cosine and the sine of a pair are mixed from those of every pair with a period of
    at most L; the others keep cos 1."""
    kept = [f for f in theta(base) if 2 * math.pi / f <= L]

    def turn(h, x, p):
        tables, y, n = [cos_sin(p * f) for f in kept], list(x), D // 2
        for m in range(n):
            cos, sin = 1.0, rest
            if m < len(kept):
                cos = sum(c * w["cosines"][h, r, m] for r, (c, _) in enumerate(tables))
                sin = sum(s * w["sines"][h, r, m] for r, (_, s) in enumerate(tables))
            y[m], y[m + n] = x[m] * cos - x[m + n] * sin, x[m + n] * cos + x[m] * sin
        return y

    return dict(turn_q=turn, turn_k=turn)


def learned_rotation(w, layout="half"):
    """Frequencies of each head, or of all, kept as logarithms relative to RoPE's."""

    def turn(h, x, p):
        shift = w["shift"][h] if w["shift"].ndim == 2 else w["shift"]
        angles = [p * f * math.exp(shift[m]) for m, f in enumerate(theta())]
        return pairs_turned(x, angles, layout, table=False)

    return dict(turn_q=turn, turn_k=turn)


def polar(w):
    """PoPE: cos((j - i) theta + delta) is a product of two directions; magnitudes are softplus."""
    angles = theta(10000.0, 2 * D)  # base^(-c/d)

    def q(h, x, p):
        tables = [cos_sin(p * f) for f in angles]
        return [softplus(a) * t[n] for n in (0, 1) for a, t in zip(x, tables, strict=True)]

    def k(h, x, p):
        delta = [min(0.0, max(-2 * math.pi, d)) for d in w["delta"][h]]
        tables = [cos_sin(p * f) for f in angles]
        ends = [
            (c * math.cos(d) - s * math.sin(d), s * math.cos(d) + c * math.sin(d))
            for (c, s), d in zip(tables, delta, strict=True)
        ]
        return [softplus(a) * t[n] for n in (0, 1) for a, t in zip(x, ends, strict=True)]

    return dict(turn_q=q, turn_k=k)


def growing(gamma, scale_base):
    """xPos: RoPE whose queries grow and whose keys shrink with the position."""

    def side(sign):
        def turn(h, x, p):
            y = pairs_turned(x, [p * f for f in theta()])
            power = sign * p / scale_base
            zeta = [((2 * m / D + gamma) / (1 + gamma)) ** power for m in range(D // 2)]
            return [a * z for a, z in zip(y, [*zeta, *zeta], strict=True)]

        return turn

    return dict(turn_q=side(1), turn_k=side(-1))


def accumulating(w, base, taps):
    """Selective RoPE's score of a pair: between key and query lie the learned steps of the tokens
    after the key."""

    def found(s, h, i, j):
        x = s.x.reshape(len(s.x), H, D)
        x = (x / np.sqrt((x * x).sum(-1, keepdims=True))).reshape(len(s.x), C)
        steps = x @ w["down"].T @ w["up"].T  # (T, H d / 2)
        angles = []
        for m, f in enumerate(theta(base)):
            c, angle = h * D // 2 + m, 0.0
            for t, back in itertools.product(range(j + 1, i + 1), range(taps)):
                if t >= back:
                    angle += w["taps"][c, 0, taps - 1 - back] * steps[t - back, c]
            angles.append(f * angle)
        turned = pairs_turned(list(s.q[h, i]), angles, table=False)
        return float(np.dot(turned, s.k[h, j])) / math.sqrt(D) + s.bias[h, i, j]

    return dict(score=over_pairs(found))


def by_sentence(w, kind):
    """BiPE: the place in the sentence is embedded; scores depend on the numbers of sentences."""

    def starts(tokens):  # of each token: the starts of all sentences up to its own
        all_starts = [0] + [t + 1 for t, token in enumerate(tokens) if token in (3, 9)]
        return [[start for start in all_starts if start <= t] for t in range(len(tokens))]

    def embed(ids, tokens):
        places = [t - found[-1] for t, found in enumerate(starts(tokens))]
        return np.array([w["table"][min(place, len(w["table"]) - 1)] for place in places])

    def score(s, h, i, j):
        found = starts(text(len(s.x)))
        ni, nj = len(found[i]), len(found[j])
        if kind == "alibi":
            return s.scores[h, i, j] + s.bias[h, i, j] - 96 * SLOPES[h] * (ni - nj)
        q = pairs_turned(s.q[h, i], [(ni - 1) * f for f in theta()])
        k = pairs_turned(s.k[h, j], [(nj - 1) * f for f in theta()])
        return np.dot(q, k) / math.sqrt(D) + s.bias[h, i, j]

    return dict(embed=embed, score=over_pairs(score))


# ---- embeddings


def sinusoid(ids, scale, base=10000.0):
    """scale x (sines, then cosines), (T, C); the table is float32."""
    angles = [[p * base ** (-2 * m / C) for m in range(C // 2)] for p in ids]
    return np.array(
        [
            [float(np.float32(scale) * np.float32(f(a))) for f in (math.sin, math.cos) for a in row]
            for row in angles
        ]
    )


# ---- networks and recurrences


def perceptron(w, inputs):
    """Two layers: `inner`, a ReLU, `outer`."""
    inner, outer = w["inner.weight"], w["outer.weight"]
    hidden = [
        sum(a * b for a, b in zip(row, inputs, strict=True)) + c
        for row, c in zip(inner, w["inner.bias"], strict=True)
    ]
    hidden = [max(z, 0.0) for z in hidden]
    ends = w.get("outer.bias", [0.0] * len(outer))
    return [
        sum(a * b for a, b in zip(row, hidden, strict=True)) + c
        for row, c in zip(outer, ends, strict=True)
    ]


def over_pairs(found):
    """A score made pair by pair, for the pairs that are seen."""

    def score(s):
        out = np.full(s.scores.shape, -math.inf)
        for h, i, j in zip(*np.nonzero(s.scores > -math.inf), strict=True):
            out[h, i, j] = found(s, h, i, j)
        return out

    return score


def contextual(w, count, raw):
    """CoPE's score of a pair: the gates of the seen keys from j to i are summed to a position,
    which lies between two rows of the table."""

    def found(s, h, i, j):
        scale = math.sqrt(D) if raw else 1.0
        seen = [score for score in s.scores[h, i, j : i + 1] if score > -math.inf]
        p = min(sum(sigmoid(score * scale) for score in seen), count - 1)
        low = math.floor(p)
        below, above = (float(s.q[h, i] @ w["table"][row]) for row in (low, math.ceil(p)))
        return s.scores[h, i, j] + s.bias[h, i, j] + below * (1 - (p - low)) + above * (p - low)

    return dict(score=over_pairs(found))


def forgetting(w, log_f):
    """FoX's score of a pair: ln f_t of the tokens after the key, up to the query, are added."""

    def found(s, h, i, j):
        gates = s.x[j + 1 : i + 1] @ w["gate.weight"][h] + w["gate.bias"][h]
        return s.scores[h, i, j] + s.bias[h, i, j] + sum(log_f(float(gate)) for gate in gates)

    return dict(score=over_pairs(found))


def walled(w, scalar=False):
    """Wall's score of a pair: each channel of the key decays by its own gates of the tokens after
    it, up to the query; the logarithms of a further gate may be added."""
    rows = D + scalar  # of a head

    def found(s, h, i, j):
        weight, bias = (w[name][h * rows : (h + 1) * rows] for name in ("gate.weight", "gate.bias"))
        gates = [[sigmoid(float(z)) for z in weight @ x + bias] for x in s.x[j + 1 : i + 1]]
        decays = np.prod(gates, 0) if gates else np.ones(rows)
        score = sum(s.q[h, i] * s.k[h, j] * decays[:D]) / math.sqrt(D) + s.bias[h, i, j]
        return score + math.log(decays[D]) if scalar else score

    return dict(score=over_pairs(found))


def predicted(w, extent, floor=math.inf):
    """Inkling's score of a pair: numbers of the query choose among biases by distance, up to the
    extent; from the floor on, both grow with the logarithm of the number of keys."""
    rank = len(w["table"])

    def found(s, h, i, j):
        r = w["query.weight"][h * rank : (h + 1) * rank] @ s.x[i]
        bias = float(r @ w["table"][:, i - j]) if i - j < extent else 0.0
        heat = 1 + 0.1 * math.log(max(1.0, (i + 1) / floor))
        return (s.scores[h, i, j] + bias) * heat + s.bias[h, i, j]

    return dict(score=over_pairs(found))


def refined(w):
    """DAPE's score of a pair: all heads' scores and biases of the keys near it go through one
    network. What a head does not see counts as 0, and there is nothing before the first key."""
    hidden, width = w["inner.weight"].shape
    inner = w["inner.weight"].reshape(hidden, 2 * H, -1)
    outer = w["outer.weight"].reshape(H, hidden, -1)
    near = range(-(width // (4 * H)), width // (4 * H) + 1)

    def unit(s, i, j):
        total = w["inner.bias"].copy()
        for n, step in enumerate(near):
            for h in range(H):
                if 0 <= j + step <= i and s.bias[h, i, j + step] > -math.inf:
                    total += inner[:, h, n] * s.scores[h, i, j + step]
                    total += inner[:, H + h, n] * s.bias[h, i, j + step]
        return np.maximum(total, 0.01 * total)

    def found(s, h, i, j):
        mixed = [outer[h, :, n] @ unit(s, i, j + t) for n, t in enumerate(near) if j + t >= 0]
        return s.scores[h, i, j] + s.bias[h, i, j] + sum(mixed) + w["outer.bias"][h]

    return dict(score=over_pairs(found))


def reflecting(w):
    """PaTH's score of a pair: the key goes through a Householder-like map per token after it."""

    def found(s, h, i, j):
        low = s.x @ w["down.weight"].T @ w["up.weight"].T  # (T, C)
        k = s.k[h, j].copy()
        for t in range(j + 1, i + 1):
            wide = np.zeros(D)
            for n, back in itertools.product(range(D), range(3)):
                if t >= back:
                    c = h * D + n
                    wide[n] += w["conv.weight"][c, 0, 2 - back] * low[t - back, c]
            wide = np.array([z * sigmoid(z) for z in wide])
            wide /= math.sqrt(sum(wide * wide))
            b = 2 * sigmoid(float(w["beta.weight"][h] @ s.x[t]) + w["beta.bias"][h])
            k = k - b * wide * (wide @ k)
        return float(s.q[h, i] @ k) / math.sqrt(D) + s.bias[h, i, j]

    return dict(score=over_pairs(found))


def stick(current):
    """Stick-breaking weights of a query: keys take their shares from the newest to the oldest."""

    def weights(h, scores):
        own = max(j for j, z in enumerate(scores) if z > -math.inf)
        found, left = np.zeros(len(scores)), 1.0
        for j in range(own if current == "share" else own - 1, -1, -1):
            share = sigmoid(scores[j]) if scores[j] > -math.inf else 0.0
            found[j] = left * share
            left *= 1 - share
        if current == "rest":
            found[own] = left
        return found

    return lambda w: dict(weights=weights)


def softpick(h, scores):
    """What is above 0 of e^z - 1, over the sum of its sizes at the keys that are seen; their 1e-8
    is added after both were divided by e^m, m the largest score."""
    sizes = [math.exp(z) - 1 if z > -math.inf else 0.0 for z in scores]
    least = 1e-8 * math.exp(max(scores))
    return np.array([max(s, 0.0) / (sum(map(abs, sizes)) + least) for s in sizes])


def entmax15(h, scores):
    """1.5-entmax as in algorithm 2 of its paper: among the largest keys, as many as lie above the
    tau that gives them squares with the sum 1."""
    z = sorted((score / 2 for score in scores if score > -math.inf), reverse=True)
    for n in range(1, len(z) + 1):
        mean = sum(z[:n]) / n
        variance = sum((a - mean) ** 2 for a in z[:n]) / n
        tau = mean - math.sqrt(1 / n - variance)
        if n == len(z) or z[n] <= tau:
            return np.array([max(score / 2 - tau, 0.0) ** 2 for score in scores])


def largest(count):
    """The softmax over the largest scores of a query, of equal ones the first."""

    def weights(h, scores):
        kept = sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:count]
        powers = [math.exp(z - max(scores)) if j in kept else 0.0 for j, z in enumerate(scores)]
        return np.array(powers) / sum(powers)

    return lambda w: dict(weights=weights)


def gated_slopes(w, gate):
    """GRAPE's score of a pair: ALiBi's slope times a learned factor and what the gates give."""

    def opened(direction, x):
        length = math.sqrt(sum(direction**2))
        return softplus(float(direction @ x) / length / math.sqrt(D))

    def found(s, h, i, j):
        gates = 1.0
        if gate != "none":
            gates = opened(w["u"][h], s.k[h, j])
        if gate == "both":
            gates += opened(w["v"][h], s.q[h, i])
        slope = softplus(w["omega"][h]) * SLOPES[h] * gates
        return s.scores[h, i, j] + s.bias[h, i, j] - (s.ids[i] - s.ids[j]) * slope

    return dict(score=over_pairs(found))


def generalized_gaussian(w):
    """BAM's bias, minus a power of the distance from mu."""

    def bias(h, i, j):
        mu = math.exp(w["mu"][h]) - math.exp(-w["mu"][h]) if "mu" in w else 0.0
        return -math.exp(w["alpha"][h]) * (abs(i - j - mu) + 1e-5) ** w["beta"][h]

    return dict(bias=bias)


def scale_invariant(
    s,
    h,
    i,
    j,
    tau=10.0,
    alpha=math.e**0.5,
    beta=math.e**0.5,
):
    """Anson et al.'s score of a pair."""
    square = 2 * (math.log((s.ids[i] - s.ids[j]) / tau + 1) - math.log(alpha) + beta / alpha)
    return math.sqrt(square) * s.scores[h, i, j] - square + beta / alpha + s.bias[h, i, j]


def fire(w, threshold):
    """FIRE's bias: a network of the distance relative to the query's place, both through a
    logarithm."""

    def psi(t):
        return math.log(abs(float(w["c"])) * t + 1)

    def bias(h, i, j):
        longest = max(i, abs(float(w["a"])) * threshold)
        return perceptron(w, [psi(i - j) / (psi(longest) + 1e-6)])[h]

    return dict(bias=bias)


def sandwich(h, i, j, d=D):
    """Sandwich's bias: the inner product of sinusoids."""
    ripples = sum(math.cos((i - j) / 10000 ** (2 * m / d)) for m in range(1, d // 2 + 1))
    return (ripples - d / 2) / (8 * (h + 1) / H)


def stretched(table, total, cubic):
    """A table's rows at `total` places evenly spread over it, by straight lines or by Keys' cubic
    with a = -3/4."""

    def weight(x):
        x = abs(x)
        if not cubic:
            return max(0.0, 1 - x)
        if x <= 1:
            return 1.25 * x**3 - 2.25 * x**2 + 1
        return -0.75 * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    last, found = len(table) - 1, []
    for n in range(total):
        place = (n + 0.5) * len(table) / total - 0.5
        rows = range(math.floor(place) - 1, math.floor(place) + 3)
        found.append(sum(weight(place - row) * table[min(max(row, 0), last)] for row in rows))
    return np.array(found)


# ---- places in an image, a square of N tokens


def grid(**does):
    """What a scheme of images does, with the ids that hold a row and a column."""

    def ids(k, n):
        side = math.isqrt(n)
        return k // side * 4096 + k % side

    return dict(ids=ids, **does)


def place(p):
    """The row and the column of an id."""
    return int(p) // 4096, int(p) % 4096


def on_axes(base, coordinate):
    """Half of the pairs turned by the row, half by the column."""

    def turn(h, x, p):
        frequencies = theta(base, D // 2)
        return pairs_turned(x, [coordinate(n) * f for n in place(p) for f in frequencies])

    return grid(turn_q=turn, turn_k=turn)


def on_both_axes(ids, scale, base):
    """Sines and cosines of the row, then of the column, in half of the columns each."""
    frequencies = [base ** (-4 * m / C) for m in range(C // 4)]
    rows = []
    for p in ids:
        waves = [f(n * w) for n in place(p) for f in (math.sin, math.cos) for w in frequencies]
        rows.append([float(np.float32(scale) * np.float32(wave)) for wave in waves])
    return np.array(rows)


def at_places(w, ids, cubic=True):
    """The vectors of a table (2, 2, C), resized; below the square, those of its last row."""
    side, table = math.isqrt(len(ids)), w["table"]
    for _ in range(2):  # rows, then columns
        table = stretched(table, side, cubic).swapaxes(0, 1)
    return np.array([table[min(row, side - 1), column] for row, column in map(place, ids)])


def digits(w, tokens, zero):
    """Abacus: a digit gets the row of its place in its number, from the first digit."""
    rows, place = [], 0
    for token in tokens:
        digit = zero <= token < zero + 10
        rows.append(w["table"][place] if digit else np.zeros(C))
        place = place + 1 if digit else 0
    return np.array(rows)


def sinking(w):
    """The softmax's denominator has one more term, e^s."""

    def weights(h, scores):
        top = max(scores.max(), w["s"][h])
        powers = np.exp(scores - top)
        return powers / (powers.sum() + math.exp(w["s"][h] - top))

    return dict(weights=weights)


def convolved(w, places):
    """At each place, a token and the weighted ones before it, column by column."""

    def at(taps):
        def mix(x):
            mixed = x.copy()
            for t in range(len(x)):
                for n in range(min(len(taps), t + 1)):
                    mixed[t] += taps[n] * x[t - n]
            return mixed

        return mix

    return {f"mix_{place}": at(w[f"w.{place}"]) for place in places.split()}


def smeared(w):
    """A gated share of the token before."""

    def mix(x):
        rows = [x[0]]
        for before, now in itertools.pairwise(x):
            gate = sigmoid(float(now[: len(w["g"])] @ w["g"]))
            rows.append(now + w["s"] * gate * before)
        return np.array(rows)

    return dict(mix_embedding=mix)


def offset_keys(kept):
    """In each head, the columns from `kept` on are those of the token before, 0 at the start."""

    def mix(x):
        mixed = x.copy()
        for column in range(x.shape[1]):
            if column % D >= kept:
                mixed[:, column] = [0.0, *x[:-1, column]]
        return mixed

    return dict(mix_k=mix)


def gated(y, logits):
    """Each column times the sigmoid of its gate."""
    return np.array([a * sigmoid(float(z)) for a, z in zip(y, logits, strict=True)])


# ---- the table

ORACLES: dict[str, Callable[[Weights], Parts]] = {
    # Haviv et al. 2022; Kazemnejad et al. 2023
    "nope": lambda w: dict(),
    # Radford et al. 2019, GPT-2's wpe
    "learned(rows=64)": lambda w: dict(
        embed=lambda ids, tokens: np.array([w["table"][int(p)] for p in ids])
    ),
    # Vaswani et al. 2017, section 3.5, times 0.1
    "sinusoidal": lambda w: dict(embed=lambda ids, tokens: sinusoid(ids, 0.1)),
    # Vaswani et al. 2017, section 3.5
    "sinusoidal(scale=1, base=100)": lambda w: dict(
        embed=lambda ids, tokens: sinusoid(ids, 1.0, 100.0)
    ),
    # Su et al. 2021, eq. 34, in Llama's layout
    "rope": rotary(theta()),
    # Su et al. 2021 with base 500
    "rope(base=500)": rotary(theta(500.0)),
    # Su et al. 2021, eq. 34
    "rope(layout=interleaved)": rotary(theta(), "interleaved"),
    # Black et al. 2022, GPT-NeoX's rotary_pct
    "rope(fraction=0.5)": rotary(theta(columns=4)),
    # Barbero et al. 2024, p-RoPE
    "rope(p=0.5)": rotary([*theta()[:2], 0.0, 0.0]),
    # Chen et al. 2024, full turns within L
    "hope": rotary([f if L * f >= 2 * math.pi else 0.0 for f in theta()]),
    "hope(base=2)": rotary([f if L * f >= 2 * math.pi else 0.0 for f in theta(2.0)]),
    # Wertheimer et al. 2026: 4 columns, wavelengths of L / 4 and L / 2
    "rope_id": rotary([math.pi, math.pi / 2]),
    # RoPE++ 2025, imagx of its code
    "rope_pp(queries=own)": imaginary,
    # García-Castellanos et al. 2026; Su 2025
    "rove": rotary_values(theta()),
    "rove(base=500, layout=interleaved, fraction=0.5)": rotary_values(
        theta(500.0, 4), "interleaved"
    ),
    # Li et al. 2026, raised cosine
    "clip(pairs=3)": rotary(clipped(theta(), 3)),
    # Press et al. 2021, section 3
    "alibi": lambda w: dict(bias=lambda h, i, j: -SLOPES[h] * (i - j)),
    # Press et al. 2021, section 3, slopes trained
    "alibi(learned=True)": lambda w: dict(bias=lambda h, i, j: -softplus(w["raw"][h]) * (i - j)),
    # Vasylenko et al. 2025, its code: a slope of 1 in the first of two heads
    "nape": lambda w: dict(bias=lambda h, i, j: (j - i, 0.0)[h]),
    # Raffel et al. 2019, section 2.1
    "t5": lambda w: dict(bias=lambda h, i, j: w["table"][buckets(i - j, 32, 17), h]),
    "t5(buckets=4, max_distance=6)": lambda w: dict(
        bias=lambda h, i, j: w["table"][buckets(i - j, 4, 6), h]
    ),
    # Xiao et al. 2023, positions unchanged
    "window(size=3, sinks=1)": lambda w: dict(sees=lambda i, j: i - j < 3 or j < 1),
    # Beltagy et al. 2020, causal
    "window(size=2)": lambda w: dict(sees=lambda i, j: i - 2 < j),
    # Ruoss et al. 2023, spread evenly at test
    "randomized(max=64)": lambda w: dict(ids=lambda k, n: math.floor(k * 64 / n)),
    # Su 2021; Chiang & Cholak 2022
    "logn": lambda w: dict(temperature=lambda h, index: math.log(index + 1) / math.log(L)),
    # Hayase & Karakida 2026
    "logn(power=2)": lambda w: dict(
        temperature=lambda h, index: math.log(index + 1) ** 2 / math.log(L) ** 2
    ),
    # Chi et al. 2022, unscaled as in its code
    "kerple": lambda w: dict(bias=lambda h, i, j: -w["r1"][h] * math.log(1 + w["r2"][h] * (i - j))),
    "kerple(kind=power)": lambda w: dict(bias=lambda h, i, j: -w["r1"][h] * (i - j) ** w["r2"][h]),
    # Sun et al. 2022, blocks of L / 2
    "block_causal": lambda w: dict(sees=lambda i, j: i // 4 - j // 4 <= 1),
    # Sun et al. 2022
    "block_causal(size=2)": lambda w: dict(sees=lambda i, j: i // 2 - j // 2 <= 1),
    # Shaw et al. 2018, with scalars
    "relative": lambda w: dict(bias=lambda h, i, j: w["table"][min(int(i - j), 4), h]),
    "relative(max_distance=2)": lambda w: dict(
        bias=lambda h, i, j: w["table"][min(int(i - j), 2), h]
    ),
    # Li et al. 2023; the code of DAPE's authors
    "fire": lambda w: fire(w, L),
    "fire(threshold=4, hidden=5)": lambda w: fire(w, 4),
    # Chi et al. 2022b; NeMo
    "sandwich": lambda w: dict(bias=sandwich),
    "sandwich(dimension=12)": lambda w: dict(bias=lambda h, i, j: sandwich(h, i, j, 12)),
    # Liu et al. 2021 (Swin V2), in one dimension
    "cpb": lambda w: dict(
        bias=lambda h, i, j: perceptron(w, [math.log(1 + i - j) / math.log(1 + L)])[h]
    ),
    "cpb(input=linear, hidden=5)": lambda w: dict(
        bias=lambda h, i, j: perceptron(w, [(i - j) / L])[h]
    ),
    # Xu et al. 2025, in one layer
    "multiscale": lambda w: dict(bias=lambda h, i, j: 0.0 if i - j < (1, 8)[h] else -math.inf),
    "multiscale(smallest=2, largest=5)": lambda w: dict(
        bias=lambda h, i, j: 0.0 if i - j < (2, 5)[h] else -math.inf
    ),
    # Golovneva et al. 2024, their listing
    "cope": lambda w: contextual(w, 4, False),
    # Golovneva et al. 2024, their formula
    "cope(max=2, gate=raw)": lambda w: contextual(w, 2, True),
    # Lin et al. 2025
    "fox": lambda w: forgetting(w, lambda z: math.log(sigmoid(z))),
    # Veisi et al. 2025
    "fox(kind=cable)": lambda w: forgetting(w, lambda z: -softplus(z)),
    # Inkling, its attention in transformers
    "rel_proj": lambda w: predicted(w, L // 2),
    "rel_proj(rank=3, extent=7, floor=3)": lambda w: predicted(w, 7, 3),
    # Tilde Research 2026, naive.py of its code
    "wall": walled,
    "wall(scalar=True)": lambda w: walled(w, True),
    # Zheng et al. 2024
    "dape": refined,
    # Zheng et al. 2024 (DAPE V2), its code
    "dape(hidden=3, kernel=3)": refined,
    # Yang et al. 2025
    "path(rank=3)": reflecting,
    # Tan et al. 2024
    "stick_breaking": stick("skip"),
    # Tan et al. 2024, their attend_current
    "stick_breaking(current=share)": stick("share"),
    # Tan et al. 2024, the rest to v_i
    "stick_breaking(current=rest)": stick("rest"),
    # Zuhri et al. 2025
    "softpick": lambda w: dict(weights=softpick),
    # Peters et al. 2019
    "entmax15": lambda w: dict(weights=entmax15),
    # Zhao et al. 2019
    "topk(keys=3)": largest(3),
    "topk(keys=0.25)": largest(2),
    # Zhang et al. 2025, their code
    "grape": lambda w: gated_slopes(w, "key"),
    # Zhang et al. 2025, eq. 4.6
    "grape(gate=both)": lambda w: gated_slopes(w, "both"),
    # Zhang et al. 2025, eq. 4.7
    "grape(gate=none)": lambda w: gated_slopes(w, "none"),
    # Bianchessi et al. 2025, their code
    "bam": generalized_gaussian,
    "bam(location=True)": generalized_gaussian,
    # Nakanishi 2025
    "ssmax": lambda w: dict(temperature=lambda h, index: w["s"][h] * math.log(index + 1)),
    # Mistral Large 4 in transformers
    "ssmax(bias=True)": lambda w: dict(
        temperature=lambda h, index: w["s"][h] * math.log(index + 1) + w["b"][h]
    ),
    # Anson et al. 2025
    "scale_invariant": lambda w: dict(score=over_pairs(scale_invariant)),
    "scale_invariant(tau=2)": lambda w: dict(
        score=over_pairs(lambda s, h, i, j: scale_invariant(s, h, i, j, 2.0))
    ),
    # McLeish et al. 2024, and its code
    "abacus(zero=3, max_shift=4, rows=64)": lambda w: dict(
        embed=lambda ids, tokens: digits(w, tokens, 3)
    ),
    # Likhomanenko et al. 2021, at test
    "cape": lambda w: dict(embed=lambda ids, tokens: sinusoid(ids, 0.1)),
    # Hua et al. 2024, its code
    "fope(base=2)": lambda w: fourier(w, 2.0, 1.0),
    # Hua et al. 2024
    "fope(base=2, rest=0, learned=True)": lambda w: fourier(w, 2.0, 0.0),
    # Su et al. 2021, eq. 34, frequencies of each head
    "learned_rope": learned_rotation,
    # Mistral Large 4 in transformers, one of all heads
    "learned_rope(shared=True, layout=interleaved)": lambda w: learned_rotation(w, "interleaved"),
    # Gopalakrishnan et al. 2025
    "pope": polar,
    # Wang et al. 2024
    "resonance": rotary([2 * math.pi / n for n in (6, 63, 628, 6283)]),
    # Shimizu et al. 2026, midpoints at test
    "rfs": lambda w: dict(ids=lambda k, n: (k + 0.5) * 8 / max(n, L)),
    "rfs(max=3)": lambda w: dict(ids=lambda k, n: (k + 0.5) * 3 / max(n, L)),
    # Movahedi et al. 2025, and its code
    "selective_rope(base=100, rank=3, taps=3)": lambda w: accumulating(w, 100.0, 3),
    # He et al. 2024, and its code
    "bipe(ends=[3, 9], rows=3)": lambda w: by_sentence(w, "rope"),
    "bipe(kind=alibi, ends=[3, 9])": lambda w: by_sentence(w, "alibi"),
    # Kiyono et al. 2021, at test
    "shape": lambda w: dict(ids=lambda k, n: k),
    # Kiyono et al. 2021, its code
    "shape(test_shift=1000003)": lambda w: dict(ids=lambda k, n: k + 1000003),
    # Sun et al. 2022, algorithm 1
    "xpos": lambda w: growing(0.4, L / 2),
    "xpos(gamma=1, scale_base=32)": lambda w: growing(1.0, 32.0),
    # Dosovitskiy et al. 2020, appendix D.4
    "learned2d": lambda w: grid(embed=lambda ids, tokens: at_places(w, ids)),
    "learned2d(resize=bilinear)": lambda w: grid(
        embed=lambda ids, tokens: at_places(w, ids, False)
    ),
    # Chen et al. 2021, times 0.1
    "sinusoidal2d": lambda w: grid(embed=lambda ids, tokens: on_both_axes(ids, 0.1, 10000.0)),
    # Chen et al. 2021
    "sinusoidal2d(scale=1, base=100)": lambda w: grid(
        embed=lambda ids, tokens: on_both_axes(ids, 1.0, 100.0)
    ),
    # Heo et al. 2024, axial
    "rope2d": lambda w: on_axes(100.0, float),
    # Siméoni et al. 2025, DINOv3
    "rope2d(base=500, coordinates=unit)": lambda w: on_axes(
        500.0, lambda n: 2 * math.pi * ((2 * n + 1) / 2 - 1)
    ),
    # Fuller et al. 2023
    "alibi2d": lambda w: grid(bias=lambda h, i, j: -SLOPES[h] * math.dist(place(i), place(j))),
    # Llama 4, chunked_overlay of transformers
    "chunks(size=3)": lambda w: dict(sees=lambda i, j: i // 3 == j // 3),
    # Llama 4, its attention in transformers
    "step_temperature": lambda w: dict(
        temperature=lambda h, i: 1 + 0.1 * math.log(1 + math.floor((i + 1) / L))
    ),
    "step_temperature(scale=0.5, floor=3)": lambda w: dict(
        temperature=lambda h, i: 1 + 0.5 * math.log(1 + math.floor((i + 1) / 3))
    ),
    # Ministral 3, its attention in transformers
    "step_temperature(first=0, floor=3)": lambda w: dict(
        temperature=lambda h, i: 1 + 0.1 * math.log(1 + math.floor(i / 3))
    ),
    # gpt-oss, its attention in transformers
    "sink": sinking,
    # Qiu et al. 2025, elementwise after attention
    "gate": lambda w: dict(
        output=lambda h, y, v, x: gated(y, w["gate.weight"][h * D : h * D + D] @ x)
    ),
    # Qiu et al. 2025, one of each head
    "gate(kind=head)": lambda w: dict(
        output=lambda h, y, v, x: gated(y, [w["gate.weight"][h] @ x] * D)
    ),
    # Allen-Zhu 2025, figure of the four places; Inkling, its layer in transformers
    "canon": lambda w: convolved(w, "input q k v mlp hidden"),
    "canon(at=AC, taps=2)": lambda w: convolved(w, "input mlp"),
    "short_conv": lambda w: convolved(w, "k v branch mlp_branch"),
    # modded-nanogpt and nanochat, their train_gpt.py and gpt.py
    "smear": smeared,
    "smear(columns=5)": smeared,
    "key_offset": lambda w: offset_keys(D // 2),
    "key_offset(fraction=0.25)": lambda w: offset_keys(D // 4),
    # Laguna, its attention in transformers
    "gate(kind=head, by=softplus)": lambda w: dict(
        output=lambda h, y, v, x: y * softplus(float(w["gate.weight"][h] @ x))
    ),
    # Zhai 2026
    "xsa": lambda w: dict(output=lambda h, y, v, x: y - (y @ v) / (v @ v) * v),
    # modded-nanogpt 2026, pull request 264
    "xsa(learned=True)": lambda w: dict(
        output=lambda h, y, v, x: y - math.tanh(w["alpha"][h]) * (y @ v) / (v @ v) * v
    ),
}
