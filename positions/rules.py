"""What goes together in a position expression, and what does not: one table, RULES."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from configurable import require
from posenc import Alibi, Extension, Learned, Piece, Rotary, Scaled, overrides, scheme_name


@dataclass(frozen=True)
class Rule:
    """Two pieces a and b for which `pair(a, b)` holds are refused with `sentence`.

    With `needed` it is the other way round: a is refused unless some b makes the pair. `scope` says
    which pieces are compared: those of one "layer", those of the "scheme", those of one "extend"
    expression, or an extension a with the pieces b of the scheme ("fit").
    """

    scope: str
    pair: Callable[[Piece, Piece], bool]
    sentence: str  # {a} and {b} are names, {first} and {second} the pieces
    needed: bool = False


def both(method: str) -> Callable[[Piece, Piece], bool]:
    """Whether two pieces both override a method."""
    return lambda a, b: overrides(a, method) and overrides(b, method)


def same_class(a: Piece, b: Piece) -> bool:
    """Whether two pieces are the same scheme."""
    return type(a) is type(b)


def in_conflict(a: Piece, b: Piece) -> bool:
    """Whether a scheme says that it cannot act in one layer with another."""
    return scheme_name(b) in a.conflicts


def moves_positions(piece: Piece) -> bool:
    """Whether a piece gives tokens other positions than their places."""
    return overrides(piece, "ids") or overrides(piece, "draw")


def is_acting(piece: Piece) -> bool:
    """Whether a piece adds to embeddings or scores, or turns queries and keys."""
    return any(overrides(piece, method) for method in ("embed", "turn", "bias", "score"))


def reads_positions(piece: Piece) -> bool:
    """Whether what a piece computes depends on position ids."""
    return piece.reads_ids and is_acting(piece)


def has_vectors(piece: Piece) -> bool:
    """Whether a piece has one vector for each whole position, and none for those in between."""
    return overrides(piece, "embed") and (piece.limit is not None or is_resized(piece))


def is_resized(piece: Piece) -> bool:
    """Whether a piece is a learned table that is stretched over the positions 0 ... N - 1."""
    return isinstance(piece, Learned) and piece.resize != "none"


def both_map(a: Piece, b: Piece) -> bool:
    """Whether two pieces map frequencies, and neither is made to act after the other."""
    return both("map_frequencies")(a, b) and not (a.goes_last or b.goes_last)


def draws_for_other_length(a: Piece, b: Piece) -> bool:
    """Whether an extension goes by the length of the text, and b draws positions of another."""
    by_length = isinstance(a, Extension) and a.factor(2**30) != a.factor(2**31)
    return by_length and overrides(b, "draw")


def same_file_name(a: Piece, b: Piece) -> bool:
    """Whether the options of two pieces name different files of one name."""
    if a.file is None or b.file is None:
        return False
    return a.file.name == b.file.name and not a.file.samefile(b.file)


OTHER_LENGTH = (
    "{a} follows the length of the text, and {b} draws positions for another length: "
    "give a fixed factor, as in yarn(factor=4)"
)
RULES = [
    Rule("layer", same_class, "{a} is named twice in one layer: keep one"),
    Rule("layer", both("ids"), "{a} and {b} both claim the position ids: keep one"),
    Rule("layer", both("embed"), "{a} and {b} both claim the token embedding: keep one"),
    Rule("layer", both("turn"), "{a} and {b} both claim the rotation: keep one"),
    Rule("layer", both("score"), "{a} and {b} both claim the whole score: keep one"),
    Rule("layer", in_conflict, "{a} and {b} cannot act in one layer: {a} says so (`conflicts`)"),
    Rule(
        "scheme",
        lambda a, b: overrides(a, "ids") and a.limit and b.limit and b.limit < a.limit,
        "{a} gives positions up to {first.limit}, more than the {second.limit} that {b} has: "
        "say e.g. learned(rows=...)",
    ),
    Rule(
        "scheme",
        lambda a, b: overrides(a, "ids") and is_resized(b),
        "{b} needs the positions 0 ... N - 1 as they are, and {a} changes them",
    ),
    Rule(
        "scheme",
        lambda a, b: overrides(a, "ids") and a.continuous and has_vectors(b),
        "{b} has a vector for each whole position, not for those in between that {a} gives",
    ),
    Rule("extend", same_class, "{a} is named twice: keep one"),
    Rule("extend", both("ids"), "{a} and {b} both change the positions: keep one"),
    Rule("extend", both("regions"), "{a} and {b} both change the distances: keep one"),
    Rule("extend", both_map, "{a} and {b} both change the frequencies: keep one"),
    Rule("extend", both("draw"), "{a} and {b} both change the positions of training: keep one"),
    Rule(
        "extend",
        lambda a, b: isinstance(a, Scaled) and isinstance(b, Scaled),
        "{a} and {b} both take the text to be longer by a factor: keep one",
    ),
    Rule(
        "extend",
        same_file_name,
        "{a} and {b} name two files of one name, and a run folder keeps a copy of each: rename one",
    ),
    Rule("extend", draws_for_other_length, OTHER_LENGTH),
    Rule(
        "fit",
        lambda a, b: not overrides(a, "map_frequencies") or isinstance(b, Rotary),
        "it changes the frequencies of rotary pieces, and there is none",
        needed=True,
    ),
    Rule(
        "fit",
        lambda a, b: overrides(a, "regions") and overrides(b, "score"),
        "it rewrites distances, and {b} makes the whole score by itself",
    ),
    Rule(
        "fit",
        lambda a, b: not overrides(a, "regions") or overrides(b, "turn") or overrides(b, "bias"),
        "it rewrites distances, and no score depends on one",
        needed=True,
    ),
    Rule(
        "fit",
        lambda a, b: not moves_positions(a) or reads_positions(b),
        "it changes positions, and nothing reads them",
        needed=True,
    ),
    Rule(
        "fit",
        lambda a, b: moves_positions(a) and has_vectors(b) and not overrides(b, "ids"),
        "it changes positions, and {b} has a vector for each whole one",
    ),
    Rule("fit", both("draw"), "{a} and {b} both draw the positions of training"),
    Rule(
        "fit",
        lambda a, b: a.per_layer and overrides(a, "ids") and overrides(b, "embed"),
        "it cannot be per_layer here: {b} acts once, before the first layer",
    ),
    Rule(
        "fit",
        lambda a, b: scheme_name(a) == "slopes" and is_acting(b) and not isinstance(b, Alibi),
        "it changes the slopes of alibi, and {b} acts too",
    ),
    Rule("fit", draws_for_other_length, OTHER_LENGTH),
]


def broken_rule(scope: str, a: Piece | type[Piece], others: Iterable[Piece]) -> str:
    """The sentence of the first rule of that scope that a breaks with others; empty for none."""
    others = [b for b in others if b is not a]
    for rule in RULES:
        pairs = [b for b in others if rule.scope == scope and rule.pair(a, b)]
        if rule.scope == scope and bool(pairs) != rule.needed:
            b = pairs[0] if pairs else a
            names = {"a": scheme_name(a), "b": scheme_name(b)}
            return rule.sentence.format(**names, first=a, second=b)
    return ""


def check_rules(scope: str, pieces: Sequence[Piece], text: str) -> None:
    """Raise UserError where pieces of the expression `text` break a rule of that scope."""
    for piece in pieces:
        broken = broken_rule(scope, piece, pieces)
        require(not broken, f"'{text:.80}': {broken}")
