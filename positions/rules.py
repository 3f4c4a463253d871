"""What goes together in a position expression, and what does not: a sentence for each rule."""

import itertools
from collections.abc import Callable, Collection, Sequence

from configurable import require
from posenc import Alibi, Extension, Grid, Learned, Piece, Rotary, Scaled, overrides, scheme_name

# what only one piece may claim in a layer, and change in an extension, by the method that does so
CLAIMED = {"ids": "position ids", "embed": "token embedding", "turn": "rotation"}
CHANGED = {"ids": "positions", "regions": "distances", "draw": "positions of training"}
CHANGED["pack"] = "cache"


def both(a: Piece, b: Piece, method: str) -> bool:
    """Whether two pieces both override a method."""
    return overrides(a, method) and overrides(b, method)


def moves_positions(piece: Piece) -> bool:
    """Whether a piece gives tokens other positions than their places."""
    return overrides(piece, "ids") or overrides(piece, "draw")


def claims_score(piece: Piece) -> bool:
    """Whether a piece makes the whole score, or what scores are made of, in each layer anew."""
    return overrides(piece, "score") or overrides(piece, "features")


def is_acting(piece: Piece) -> bool:
    """Whether a piece adds to embeddings or scores, or turns queries and keys."""
    return claims_score(piece) or any(overrides(piece, m) for m in ("embed", "turn", "bias"))


def reads_positions(piece: Piece) -> bool:
    """Whether what a piece computes depends on position ids."""
    return piece.reads_ids and is_acting(piece)


def has_vectors(piece: Piece) -> bool:
    """Whether a piece has one vector for each whole position, and none for those in between."""
    return overrides(piece, "embed") and (piece.limit is not None or is_resized(piece))


def is_resized(piece: Piece) -> bool:
    """Whether a piece is a learned table that is stretched over the positions 0 ... N - 1."""
    return isinstance(piece, Learned) and piece.resize != "none"


# ---- why two pieces do not go together; empty if they do


def in_one_layer(a: Piece, b: Piece) -> str:
    """Why two pieces cannot act in one layer."""
    first, second = scheme_name(a), scheme_name(b)
    if type(a) is type(b):
        return f"{first} is named twice in one layer: keep one"
    for method, what in CLAIMED.items():
        if both(a, b, method):
            return f"{first} and {second} both claim the {what}: keep one"
    if claims_score(a) and claims_score(b):
        return f"{first} and {second} both claim the whole score: keep one"
    if second in a.conflicts:
        return f"{first} and {second} cannot act in one layer: {first} says so (`conflicts`)"
    return ""


def in_one_scheme(a: Piece, b: Piece) -> str:
    """Why a piece b cannot have the positions that a gives."""
    first, second = scheme_name(a), scheme_name(b)
    if not overrides(a, "ids"):
        return ""
    if isinstance(a, Grid) and reads_positions(b):
        return f"{first} gives places in an image, and {second} reads positions along a text"
    if a.limit and b.limit and b.limit < a.limit:
        return f"{first} gives positions up to {a.limit}, more than the {b.limit} rows of {second}"
    if is_resized(b):
        return f"{second} needs the positions 0 ... N - 1 as they are, and {first} changes them"
    if a.continuous and has_vectors(b):
        return f"{second} has a vector for each whole position, none for {first}'s in between"
    return ""


def in_one_extension(a: Piece, b: Piece) -> str:
    """Why two extensions cannot act together."""
    first, second = scheme_name(a), scheme_name(b)
    if type(a) is type(b):
        return f"{first} is named twice: keep one"
    for method, what in CHANGED.items():
        if both(a, b, method):
            return f"{first} and {second} both change the {what}: keep one"
    if both(a, b, "map_frequencies") and not (a.goes_last or b.goes_last):
        return f"{first} and {second} both change the frequencies: keep one"
    if isinstance(a, Scaled) and isinstance(b, Scaled):
        return f"{first} and {second} both take the text to be longer by a factor: keep one"
    if a.file and b.file and a.file.name == b.file.name and not a.file.samefile(b.file):
        return f"{first} and {second} name two files of one name, and a run keeps both: rename one"
    return on_a_drawn_length(a, b)


def on_a_drawn_length(a: Piece, b: Piece) -> str:
    """Why an extension a cannot go by the length of the text, where b draws positions."""
    drawn = isinstance(a, Extension) and overrides(b, "draw")
    if not drawn or a.factor(2**30) == a.factor(2**31):
        return ""
    first, second = scheme_name(a), scheme_name(b)
    return f"{second} draws positions for another length: give a fixed factor to {first}"


# ---- why an extension does not fit a scheme


def misfit(a: Piece | type[Piece], pieces: Collection[Piece]) -> str:
    """Why an extension, or a class of them, does not fit a scheme of these pieces; or nothing."""
    for b in pieces:
        if broken := with_one_piece(a, b):
            return broken
    if overrides(a, "map_frequencies") and not any(isinstance(b, Rotary) for b in pieces):
        return "it changes the frequencies of rotary pieces, and there is none"
    depends = any(overrides(b, m) for b in pieces for m in ("turn", "bias"))
    if overrides(a, "regions") and not depends:
        return "it rewrites distances, and no score depends on one"
    if moves_positions(a) and not any(map(reads_positions, pieces)):
        return "it changes positions, and nothing reads them"
    return ""


def with_one_piece(a: Piece | type[Piece], b: Piece) -> str:
    """Why an extension a does not fit a piece b of the scheme."""
    name = scheme_name(b)
    if overrides(a, "regions") and claims_score(b):
        return f"it rewrites distances, and {name} makes the whole score by itself"
    if isinstance(b, Grid) and (moves_positions(a) or overrides(a, "regions")):
        return f"it changes positions along a text, and {name} reads places in an image"
    if moves_positions(a) and has_vectors(b) and not overrides(b, "ids"):
        return f"it changes positions, and {name} has a vector for each whole one"
    if both(a, b, "draw"):
        return f"{scheme_name(a)} and {name} both draw the positions of training"
    if a.per_layer and overrides(a, "ids") and overrides(b, "embed"):
        return f"it cannot be per_layer here: {name} acts once, before the first layer"
    if scheme_name(a) == "slopes" and is_acting(b) and not isinstance(b, Alibi):
        return f"it changes the slopes of alibi, and {name} acts too"
    return on_a_drawn_length(a, b)


def check_pairs(rule: Callable[[Piece, Piece], str], pieces: Sequence[Piece], text: str) -> None:
    """Raise UserError where two pieces of the expression `text` break a rule."""
    for a, b in itertools.permutations(pieces, 2):
        broken = rule(a, b)
        require(not broken, f"'{text:.80}': {broken}")
