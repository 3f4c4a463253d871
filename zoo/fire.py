"""FIRE: functional interpolation for relative positions (Li et al. 2023, arXiv 2310.04418)."""

import torch
from torch import Tensor, nn

from configurable import require
from posenc import Bias, Piece, Shape


class Fire(Piece):
    """score += MLP_h(x), x = psi(i - j) / psi(max(i, |a| threshold)), psi(t) = ln(|c| t + 1).

    The MLP is 1 -> `hidden` -> H with ReLU (parameters inner.weight (hidden, 1), inner.bias (hidden,), outer.weight
    (H, hidden), outer.bias (H,)); c () starts at 0.1, a () at 1; all are shared by layers. `threshold` defaults to the
    training length; the authors' code has 512. i counts from 0 and psi of it gains 1e-6, as in that code. x never passes 1,
    so nothing is extrapolated, but the bias of a distance changes with the query's place: scores are not shift invariant.
    Verdict: good in length; drifts from 4 L on in most hands; pairs well with randomized positions.
    """

    def __init__(self, shape: Shape, *, hidden: int = 32, threshold: float | None = None) -> None:
        super().__init__()
        self.threshold = float(shape.length) if threshold is None else threshold
        require(self.threshold > 0, f"fire: threshold must be positive, not {threshold}")
        require(hidden > 0, f"fire: hidden must be positive, not {hidden}")
        self.inner, self.outer = nn.Linear(1, hidden), nn.Linear(hidden, shape.n_head)
        self.c, self.a = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(1.0))

    def bias(self, like: Tensor) -> Bias:
        """The MLP as a sum over hidden units: nothing larger than (H, R, C) lives at once."""
        w, b, out, start, c, a = (
            p.to(like.dtype)
            for p in (
                self.inner.weight[:, 0],
                self.inner.bias,
                self.outer.weight,
                self.outer.bias,
                self.c.abs(),
                self.a.abs(),
            )
        )

        def bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            i, j = i.to(like.dtype), j.to(like.dtype)
            x = torch.log(c * (i - j) + 1) / (
                torch.log(c * torch.maximum(i, a * self.threshold) + 1) + 1e-6
            )
            total = start[h]
            for m in range(len(w)):
                total = total + out[h, m] * torch.relu(w[m] * x + b[m])
            return total

        return bias
