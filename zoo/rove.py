"""RoVE: rotary positions in values too (García-Castellanos et al. 2026, arXiv 2606.11275)."""

from posenc import Rope, apply_rotary


class Rove(Rope):
    """y_i = R(-i) sum_j a_ij R(j) v_j: each value turned by its distance j - i from the query.

    García-Castellanos et al. 2026 (arXiv 2606.11275); earlier Su 2025 (kexue.fm/archives/10862).
    DeepSeek-V4 does so because one vector is key and value. Weights a_ij and rotations R are those
    of `rope`, with its options: `fraction` of a value's columns turn. Values are turned before they
    are cached. Nothing is learned. An attention factor, such as YaRN's, multiplies scores alone.
    """

    def turn_back(self, y, tables):
        """Turn outputs by the inverse angles, and divide by what the tables multiply values by."""
        cos, sin = tables
        square = cos * cos + sin * sin  # of the attention factor
        return apply_rotary(y, cos / square, -sin / square, self.layout)
