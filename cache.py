"""What a model keeps of the tokens that it has seen, so that a new token costs one step."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from configurable import require
from posenc import Piece


@dataclass
class Cache:
    """Keys and values of the n tokens seen so far; `length` is the total length, fixed up front.

    Schemes that depend on the length use that one. Positions are given in one form throughout: (n,)
    for all texts, or (B, n) for each.
    """

    batch: int
    length: int
    n: int = 0
    positions: Tensor | None = None  # (n,) or (B, n), before any piece changes them
    chosen: bool = False  # whether a caller gave positions in any call
    tokens: Tensor | None = None  # (B, n)
    kept: dict[tuple[int, str], tuple[Tensor, ...]] = field(default_factory=dict)

    def joined(self, idx: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens and positions held, and behind them new ones, (B, t) and (t,) or (B, t)."""
        if self.tokens is None:
            return idx, positions
        same = positions.dim() == self.positions.dim()
        forms = "for all texts, (T,), or for each, (B, T)"
        require(same, f"give positions in one form in every call to a cache: {forms}")
        return torch.cat((self.tokens, idx), 1), torch.cat((self.positions, positions), -1)

    def append(self, place: tuple[int, str], *new: Tensor) -> tuple[Tensor, ...]:
        """Write what a layer keeps of t tokens, (B, heads, t, D) each; return that of all n + t.

        `place` is the layer and "k", "v" (B, heads, length, D) or "features" (B, 1, length, M).
        """
        if place not in self.kept:
            shapes = [(*t.shape[:2], self.length, t.shape[3]) for t in new]
            self.kept[place] = tuple(map(Tensor.new_empty, new, shapes))
        stop = self.n + new[0].shape[2]
        for held, t in zip(self.kept[place], new, strict=True):
            held[:, :, self.n : stop] = t
        return tuple(held[:, :, :stop] for held in self.kept[place])

    @property
    def bytes_per_token(self) -> int:
        """Bytes that are kept of each token of a text."""
        kept = sum(t.nbytes for parts in self.kept.values() for t in parts)
        return kept // (self.batch * self.length)


def keep(
    cache: Cache | None, place: tuple[int, str], x: Tensor, keeper: Piece | None = None
) -> Tensor:
    """What is kept of the new tokens' x (B, heads, T, D), behind that of those before them.

    Where a piece says how it is kept, gradients pass as if x was kept as it is.
    """
    parts = keeper.pack(x) if keeper else (x,)
    if cache is not None:
        parts = cache.append(place, *parts)
    found = keeper.unpack(*parts) if keeper else parts[0]
    return x + (found - x).detach() if keeper and cache is None else found
