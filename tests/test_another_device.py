"""Every scheme and extension follows its model to another device."""

import pytest
from another_device import passes

from scheme import Catalogue, options_of

CATALOGUE = Catalogue()
SCHEMES = [name for name in CATALOGUE.schemes if not name.endswith("2d")]


def texts(names):
    """An expression of each name that needs no options."""
    found = []
    for name in names:
        if not any(default is ... for _, default in options_of(CATALOGUE.pieces[name]).values()):
            found.append(name)
    return found


@pytest.mark.parametrize("pos", [*texts(SCHEMES), "randomized(max=64) + rope", "window(size=8)"])
def test_a_scheme_stays_on_another_device(pos):
    loss, losses = passes(pos)
    assert loss.device.type == losses.device.type == "meta" and losses.shape == (2, 16)


@pytest.mark.parametrize(
    "extend", ["pi(factor=2)", "yarn(factor=2) + logn", "window(size=8)", "int8"]
)
def test_an_extension_stays_on_another_device(extend):
    assert extend.split("(")[0] in CATALOGUE.extensions
    assert passes("rope", extend)[1].device.type == "meta"
