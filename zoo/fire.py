"""FIRE: functional interpolation for relative positions (Li et al. 2023, arXiv 2310.04418)."""

import torch
from torch import nn

from posenc import Count, Piece, PositiveFloat, Shape


class Fire(Piece):
    """score += MLP_h(x), x = psi(i - j) / psi(max(i, |a| threshold)), psi(t) = ln(|c| t + 1).

    Li et al. 2023 (arXiv 2310.04418). The MLP is 1 -> `hidden` -> H with ReLU. Parameters, all
    shared by layers: inner.weight (hidden, 1), inner.bias (hidden,), outer.weight (H, hidden),
    outer.bias (H,), c () started at 0.1, a () started at 1. `threshold` defaults to the training
    length; in the authors' code it is 512. As in that code, i counts from 0, and 1e-6 is added to
    the denominator. x never exceeds 1, so the MLP never sees a larger input than in training. But
    the bias for a distance depends on the query's position: scores change if all positions shift.
    """

    def __init__(
        self, shape: Shape, *, hidden: Count = 32, threshold: PositiveFloat | None = None
    ) -> None:
        super().__init__()
        self.threshold = threshold or float(shape.first_length)
        self.inner = nn.Linear(1, hidden)
        self.outer = nn.Linear(hidden, shape.n_head)
        self.c = nn.Parameter(torch.tensor(0.1))
        self.a = nn.Parameter(torch.tensor(1.0))

    def bias(self, h, i, j):
        """The MLP as a sum over hidden units, so that no tensor is larger than (H, T, T)."""
        c = self.c.abs()
        longest = torch.maximum(i, self.a.abs() * self.threshold)
        x = torch.log(c * (i - j) + 1) / (torch.log(c * longest + 1) + 1e-6)
        if not torch.is_grad_enabled():
            return self.by_pieces(h, x)
        total = self.outer.bias[h]
        for m in range(len(self.inner.bias)):
            hidden = torch.relu(self.inner.weight[m, 0] * x + self.inner.bias[m])
            total = total + self.outer.weight[h, m] * hidden
        return total

    def by_pieces(self, h, x):
        """The same function of x, which is linear between the points where a hidden unit becomes 0:
        faster, but slow to get gradients from.
        """
        weight = self.inner.weight[:, 0]  # (hidden,)
        # x is in 0 ... 1; a unit whose weight is 0 stays as it is
        ends = (-self.inner.bias / weight).nan_to_num(2.0).clamp(0.0, 1.0).sort().values
        edges = torch.cat((ends.new_zeros(1), ends, ends.new_ones(1)))
        middle = (edges[:-1] + edges[1:]) / 2  # of hidden + 1 pieces
        on = (weight * middle[:, None] + self.inner.bias > 0).to(weight)  # (pieces, hidden)
        slope = (on * weight) @ self.outer.weight.mT  # (pieces, H)
        start = (on * self.inner.bias) @ self.outer.weight.mT + self.outer.bias
        piece = torch.searchsorted(ends.to(x.dtype), x)
        return slope[piece, h] * x + start[piece, h]
