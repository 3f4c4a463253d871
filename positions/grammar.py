"""The grammar of position expressions: text in, data out. It knows no scheme.

    rope(base=500000) + alibi       pieces that act together
    rope | rope | rope | nope       a pattern over layers: layer n takes branch n mod 4

`+` binds tighter than `|`. Options are keywords; their values are finite literals or bare words. An
expression is read with `ast` and never run.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from configurable import UserError, require

LARGEST = 2**53  # up to here a float holds every integer
Value = bool | int | float | str


@dataclass(frozen=True)
class Mention:
    """One name in an expression, with its options, its canonical text, and the layers it acts in.

    `pattern` holds (branch, number of branches) for each `|` around it. `per_layer` is the option
    of that name, which every scheme has; None where it is not given.
    """

    name: str
    options: dict[str, Value]
    text: str
    pattern: tuple[tuple[int, int], ...] = ()
    per_layer: bool | None = None

    def acts_in(self, layer: int) -> bool:
        """Whether it acts in that layer, counted from 0."""
        return all(layer % count == branch for branch, count in self.pattern)


@dataclass(frozen=True)
class Expression:
    """A position expression: its canonical text, and its mentions from left to right."""

    text: str
    mentions: tuple[Mention, ...]


def parse(text: str) -> Expression:
    """Read an expression; UserError for what is none.

    Whether the names exist is not looked up here.
    """
    short = len(text) <= 500 and text.isascii()
    require(short, "a position expression has at most 500 ASCII characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return Expression(ast.unparse(tree), tuple(_mentions(tree, ())))
    except UserError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", error)
        example = "write e.g. alibi, rope(base=500000), '--pos=rope + alibi' (quoted in a shell)"
        sentence = f"the position expression {text!r:.80} cannot be read ({reason}); {example}"
        raise UserError(sentence) from None


def _mentions(node: ast.expr, pattern: tuple[tuple[int, int], ...]) -> Iterator[Mention]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _mentions(node.left, pattern)
        yield from _mentions(node.right, pattern)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        branches = _branches(node)
        for number, branch in enumerate(branches):
            yield from _mentions(branch, (*pattern, (number, len(branches))))
    elif isinstance(node, ast.Name):
        yield Mention(node.id, {}, node.id, pattern)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        options = _options(node)
        per_layer = options.pop("per_layer", None)
        good = per_layer is None or isinstance(per_layer, bool)
        require(good, f"per_layer is True or False, not {per_layer!s:.60}")
        yield Mention(node.func.id, options, ast.unparse(node), pattern, per_layer)
    else:
        sentence = f"{ast.unparse(node)!r:.80} is not a position scheme: an expression joins names"
        ways = "with + (together) and | (a pattern over layers)"
        raise UserError(f"{sentence} such as rope or t5(buckets=16) {ways}")


def _branches(node: ast.expr) -> list[ast.expr]:
    """The branches of a chain of `|`, which Python reads as nested pairs."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _branches(node.left) + _branches(node.right)
    return [node]


def _options(node: ast.Call) -> dict[str, Value]:
    """The options of one mention by name."""
    text, names = ast.unparse(node), [option.arg for option in node.keywords]
    right = f"write {node.func.id:.60} or {node.func.id:.60}(option=value), not {text:.80}"
    require(names and not node.args and all(names), f"options have names: {right}")
    require(len(set(names)) == len(names), f"an option is given twice in {text:.80}")
    return {option.arg: _value(option.value, text) for option in node.keywords}


def _value(node: ast.expr, where: str) -> Value:
    """The number, bool or word that an option is given."""
    if isinstance(node, ast.Name):
        return node.id
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = getattr(node.operand if minus else node, "value", None)
    number = type(value) in (int, float) and abs(value) <= LARGEST
    word = isinstance(value, bool) or (isinstance(value, str) and value.isprintable())
    good = number or (word and not minus)
    wanted = "a value is a number of at most 2**53, True, False or a word"
    require(good, f"in {where:.80}: {wanted}, not {ast.unparse(node):.60}")
    return -value if minus else value
