"""The grammar of position expressions: `rope(base=500000) + alibi`, `rope | nope`. It knows no scheme.

`+` lets pieces act together and binds tighter than `|`, a pattern over layers; options are keywords with finite literals or
bare words as values. An expression is read by `ast` and never run; `ast.unparse` of the tree is its canonical text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from configurable import UserError, require


class _Bare(ast.NodeTransformer):
    """alibi() is alibi."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return (
            node if node.args or node.keywords or not isinstance(node.func, ast.Name) else node.func
        )


def parse(text: str) -> ast.expr:
    """The syntax tree of a position expression, checked but not yet looked up; `ast.unparse` of it is the canonical text."""
    require(
        len(text) <= 500 and text.isascii(),
        "a position expression has at most 500 ASCII characters",
    )
    try:
        tree = _Bare().visit(ast.parse(text.strip(), mode="eval").body)
        for node in mentions_of(tree):
            options_in(node)
    except UserError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(
            f"the position expression {text!r:.80} cannot be read ({getattr(error, 'msg', error)}); "
            "write e.g. alibi, rope(base=500000), '--pos=rope + alibi' (quoted in a shell)"
        ) from None
    return tree


def mentions_of(node: ast.expr) -> Iterator[ast.expr]:
    """Every mention of a scheme in an expression, in order; UserError for what is none."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.BitOr)):
        yield from mentions_of(node.left)
        yield from mentions_of(node.right)
    elif isinstance(node, ast.Name) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ):
        yield node
    else:
        raise UserError(
            f"{ast.unparse(node)!r:.80} is not a position scheme: an expression joins names such as rope or "
            "t5(buckets=16) with + (together) and | (a pattern over layers)"
        )


def name_of(node: ast.expr) -> str:
    """The name in one mention."""
    return node.id if isinstance(node, ast.Name) else node.func.id


def options_in(node: ast.expr) -> dict[str, object]:
    """The options of one mention, {name: value}; values are finite literals or bare words."""
    if isinstance(node, ast.Name):
        return {}
    require(
        not node.args and all(k.arg for k in node.keywords),
        f"options have names: write {name_of(node):.60}(option=value), not {ast.unparse(node):.80}",
    )
    given = [k.arg for k in node.keywords]
    require(len(set(given)) == len(given), f"an option is given twice in {ast.unparse(node):.80}")
    return {k.arg: _value(k.value, ast.unparse(node)) for k in node.keywords}


def _value(node: ast.expr, where: str) -> object:
    if isinstance(node, ast.Name):
        return node.id
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    value = getattr(node.operand if minus else node, "value", None)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    finite = number and abs(value) <= 2**53  # up to there a float holds every integer
    require(
        finite
        or (
            not minus
            and (isinstance(value, bool) or (isinstance(value, str) and value.isprintable()))
        ),
        f"in {where:.80}: a value is a number of at most 2**53, True, False or a word, not {ast.unparse(node):.60}",
    )
    return -value if minus else value


def everywhere(node: ast.expr) -> list[ast.expr]:
    """The mentions that stand in no branch: only these may act before the first layer."""
    if isinstance(node, ast.BinOp):
        return (
            everywhere(node.left) + everywhere(node.right) if isinstance(node.op, ast.Add) else []
        )
    return [node]


def without_per_layer(node: ast.expr, default: bool) -> tuple[ast.expr, bool]:
    """Take the grammar's own option off a mention: (the mention without it, its value)."""
    value = options_in(node).get("per_layer", default)
    require(isinstance(value, bool), f"per_layer is True or False, not {value!s:.60}")
    if isinstance(node, ast.Name):
        return node, value
    return ast.Call(node.func, [], [k for k in node.keywords if k.arg != "per_layer"]), value
