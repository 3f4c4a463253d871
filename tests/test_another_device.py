"""Every scheme and extension follows its model to another device."""

import pytest
from another_device import passes

from scheme import Catalogue, options_of

CATALOGUE = Catalogue()
DRAWN = [
    "randomized(max=64) + rope",
    "randomized(max=64, test=draw) + rope",
    "rfs(test=draw) + alibi",
]


def texts(names):
    """An expression of each name that needs no options."""
    found = []
    for name in names:
        if not any(default is ... for _, default in options_of(CATALOGUE.pieces[name]).values()):
            found.append(name)
    return found


@pytest.mark.parametrize("pos", [*texts(CATALOGUE.schemes), *DRAWN, "window(size=8)"])
def test_a_scheme_stays_on_another_device(pos):
    loss, losses, copied = passes(pos)
    assert copied == []  # each copy takes time, in every pass
    assert loss.device.type == losses.device.type == "meta" and losses.shape == (2, 16)


@pytest.mark.parametrize(
    "extend", ["pi(factor=2)", "yarn(factor=2) + logn", "window(size=8)", "int8"]
)
def test_an_extension_stays_on_another_device(extend):
    assert extend.split("(")[0] in CATALOGUE.extensions
    assert passes("rope", extend)[1].device.type == "meta"
