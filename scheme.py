"""Position schemes: from an expression such as `rope + alibi` to what attention needs.

    rope(base=500000) + alibi       pieces that act together
    rope | rope | rope | nope       a pattern over layers: layer n uses branch n mod 4
    3 * rope | nope                 the same pattern with one rope, shared by three layers

The grammar parses an expression. The look-up finds the class of each name and builds the pieces.
`check_layer` refuses pieces that cannot be combined. `Scheme` holds the pieces of a model and makes
a `Plan` for attention in each forward pass. At the end are the files that define a scheme, which a
run keeps.
"""

import ast
import difflib
import hashlib
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

import posenc
from attention import Options, Plan, cut, no_autocast, prepare, slice_queries
from common.compiler import has_numbers, materialize
from common.errors import UserError
from common.files import mixed_seed, sha256
from configurable import type_adapter
from posenc import (
    Extension,
    Piece,
    Rotary,
    Scaled,
    Shape,
    Window,
    methods_of,
    scheme_name,
)

ROOT = Path(__file__).resolve().parent
ZOO = ROOT / "zoo"
OWN_FILE = "pos_file.py"  # the copy of --pos_file in a run folder


# ---- the grammar


@dataclass(frozen=True)
class Mention:
    """A scheme that an expression names, with its options and its canonical text.

    Mentions are numbered from left to right, from 0: `rope | rope` has two of them, `2 * rope` one,
    for two layers.
    """

    number: int
    name: str
    options: dict[str, Any] = field(hash=False)
    text: str


# A cycle over layers: layer n uses branch n % len(pattern). A branch is a mention, or two patterns
# joined by +.
Pattern = list["Mention | tuple[Pattern, Pattern]"]


@dataclass(frozen=True)
class Expression:
    """A parsed expression: its canonical text, its mentions from left to right, and its pattern."""

    text: str
    mentions: list[Mention]
    pattern: Pattern


def mentions_in(pattern: Pattern, layer: int) -> list[Mention]:
    """The mentions of a pattern that act in a layer (counted from 0)."""
    branch = pattern[layer % len(pattern)]
    if isinstance(branch, Mention):
        return [branch]
    left, right = branch
    return mentions_in(left, layer) + mentions_in(right, layer)


def parse(text: str) -> Expression:
    """Parse an expression; UserError if it is malformed.

    Names are not looked up yet: see `build`.
    """
    mentions = []
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        canonical = ast.unparse(tree)
        if len(canonical) > 500 or not text.isascii():
            raise UserError("a position expression has at most 500 ASCII characters")
        pattern = read_pattern(tree, mentions)  # fills `mentions`
        return Expression(canonical, mentions, pattern)
    except (SyntaxError, RecursionError, MemoryError):
        raise UserError(
            f"the expression {text!r:.80} cannot be read; write e.g. alibi, rope(base=500000), "
            "'--pos=rope + alibi' (quoted in a shell)"
        ) from None


def canonical_extend(text: str) -> str:
    """An `extend` expression in canonical form, "" for one that extends nothing, such as `none`."""
    names = {mention.name for mention in parse(text or "none").mentions}
    return "" if names == {"none"} else parse(text).text


def read_pattern(tree, mentions):
    """The pattern of a syntax tree; the mentions in it are appended to `mentions`."""
    match tree:
        case ast.BinOp(left, ast.Add(), right):
            return [(read_pattern(left, mentions), read_pattern(right, mentions))]
        case ast.BinOp(left, ast.BitOr(), right):
            return read_pattern(left, mentions) + read_pattern(right, mentions)
        case ast.BinOp(ast.Constant(int(count)), ast.Mult(), right) if count is not True:
            pattern = read_pattern(right, mentions)
            if 1 <= count * len(pattern) <= 1000:  # nested repeats multiply
                return count * pattern
    mention = read_mention(tree, len(mentions))  # UserError for what is neither a name nor a call
    mentions.append(mention)
    return [mention]


def read_mention(tree, number):
    """Read a name or a call, such as rope or t5(buckets=16)."""
    text = ast.unparse(tree)
    match tree:
        case ast.Name(name):
            keywords = []
        case ast.Call(ast.Name(name), [], keywords):
            pass
        case _:
            raise UserError(
                f"{text!r:.80} is not a position scheme: write a name such as rope or dynamic_ntk, "
                "with its options by name as in t5(buckets=16); join schemes with + (in the same "
                "layer) or | (in alternating layers), and repeat a branch as in 3 * rope | nope; "
                "names have underscores, no hyphens"
            )
    options = {}
    for keyword in keywords:
        if keyword.arg is None or keyword.arg in options:
            raise UserError(f"in {text:.80}: write each option once, as name=value")
        try:
            is_word = isinstance(keyword.value, ast.Name)  # as in kind=log
            value = keyword.value.id if is_word else ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            raise UserError(
                f"in {text:.80}: a value is a number, True, False, a word or a name in quotes"
            ) from None
        options[keyword.arg] = value
    return Mention(number, name, options, text)


# ---- the look-up

# names used elsewhere, in lower case and without underscores
ALIASES = {
    "absolute": "learned",
    "rotary": "rope",
    "sin": "sinusoidal",
    "linear": "pi",
    "ntkaware": "ntk",
    "dynamic": "dynamic_ntk",
}


helper_names: set[str] = set()  # modules that a user's file has imported from its own folder


def load_file(path: Path) -> tuple[dict[str, type[Piece]], list[Path]]:
    """Run a user's Python file: the pieces that it defines, by name, and the files that it has
    imported from its own folder, directly or through others. It is run once, and again if it has
    changed; in one process, a change of what it imports alone is not seen.

    UserError if it defines no piece.
    """
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"there is no Python file {path} to take position schemes from")
    return run_file(path, sha256(path))


@lru_cache
def run_file(path, digest):
    """`load_file` for a file with the content of this SHA-256."""
    folder = path.parent
    for name in helper_names:  # those of another user's file may have the same names
        sys.modules.pop(name, None)
    name = f"pos_{hashlib.sha256(str(path).encode()).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where torch.compile looks up the module of a function
    before = set(sys.modules)
    helpers = []
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's own file may raise anything
        raise UserError(
            f"{path} cannot be run: {type(error).__name__}: {error}; correct it, or see --debug"
        ) from error
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            file = Path(getattr(sys.modules[name], "__file__", None) or "")
            # the folder may hold an environment with installed packages
            if file.is_relative_to(folder) and "site-packages" not in file.parts:
                helper_names.add(name)
                helpers.append(file)
    pieces = pieces_of(module)
    if not pieces:
        raise UserError(f"{path} defines no subclass of posenc.Piece")
    return pieces, helpers


def pieces_of(module):
    """The schemes and extensions that a module itself defines, by name."""
    pieces = {}
    for cls in vars(module).values():
        is_own = isinstance(cls, type) and cls.__module__ == module.__name__
        if is_own and issubclass(cls, Piece) and cls not in (Piece, Rotary, Extension, Scaled):
            pieces[scheme_name(cls)] = cls
    return pieces


class Catalogue:
    """What an expression may name: the classes of posenc.py, of the zoo, and of the user's own
    file. `schemes` are the names for `pos`, `extensions` those for `extend`.

    UserError if the user's file defines a name that exists already.
    """

    def __init__(self, pos_file: str | Path | None = None):
        self.pos_file = Path(pos_file).resolve() if pos_file else None
        pieces = pieces_of(posenc)
        for path in ZOO.glob("[a-z]*.py"):
            pieces |= pieces_of(importlib.import_module(f"zoo.{path.stem}"))
        users, _ = load_file(self.pos_file) if pos_file else ({}, [])
        for name in users:
            if name in pieces:
                where = f"{self.pos_file} defines {name}"
                raise UserError(f"{where}, which exists already: rename the class")
        self.pieces = dict(sorted((pieces | users).items()))  # {name: class}
        self.schemes = [n for n, cls in self.pieces.items() if not issubclass(cls, Extension)]
        self.extensions = [name for name, cls in self.pieces.items() if cls.can_extend]

    def find(self, name: str, option: str = "") -> type[Piece]:
        """Look up the class of a piece. With option="pos" or "extend" it must be valid there.

        UserError for a wrong name: it suggests the closest one, or lists them all.
        """
        right = name
        if name == "all" and option == "extend":
            raise UserError("--extend=all is for evaluate.py: name one extension")
        if name not in self.pieces:
            meant = ALIASES | {piece.replace("_", ""): piece for piece in self.pieces}
            near = difflib.get_close_matches(name.lower().replace("_", ""), meant, 1, 0.75)
            if not near:
                names = self.extensions if option == "extend" else self.schemes
                raise UserError(
                    f"there is no position scheme {name:.60}; your own needs --pos_file=FILE.py. "
                    f"There are: {', '.join(names)}"
                )
            right = meant[near[0]]
        cls = self.pieces[right]
        if option == "extend" and not cls.can_extend:
            raise UserError(f"{name} does not extend a trained model: train with --pos={right}")
        if option == "pos" and issubclass(cls, Extension):
            raise UserError(f"{name} extends a trained model: write it as --extend={right}")
        if right != name:
            raise UserError(f"there is no position scheme {name}: did you mean {right}?")
        return cls


def options_of(cls: type[Piece]) -> dict[str, tuple[Any, Any]]:
    """{name: (annotation, default)} of a scheme's options: the arguments of __init__ after self and
    shape. A required one has `...` as default, as in pydantic.
    """
    options = {}
    arguments = inspect.signature(cls.__init__, eval_str=True).parameters.values()
    for option in list(arguments)[2:]:
        if option.kind in (option.POSITIONAL_OR_KEYWORD, option.KEYWORD_ONLY):
            annotation = Any if option.annotation is option.empty else option.annotation
            default = ... if option.default is option.empty else option.default
            options[option.name] = (annotation, default)
    return options


def build(
    expression: Expression, n_layer: int, shape: Shape, catalogue: Catalogue
) -> tuple[dict[str, Piece], list[tuple[str, ...]]]:
    """Build an expression: {key: piece}, and for each layer the keys of the pieces that act in it.

    With `shape.extends` it is an `extend` expression. UserError for a wrong name or option, or for
    a piece in the wrong place.
    """
    pieces = {}
    layers = [() for _ in range(n_layer)]
    for mention in expression.mentions:
        if shape.extends and mention.name == "none":  # layers without extension
            continue
        cls = catalogue.find(mention.name, "extend" if shape.extends else "pos")
        options = read_options(cls, mention, shape.first_length)
        per_layer = options.pop("per_layer")
        for layer in layers_of(mention, cls, expression, n_layer, shape.extends):
            key = f"{mention.number}_{mention.name}"  # one piece for all layers
            if per_layer:
                key += f"_layer{layer}"
            if key not in pieces:
                pieces[key] = construct(cls, shape, options)
                pieces[key].per_layer = per_layer
            layers[layer] += (key,)
    return pieces, layers


def read_options(cls, mention, first_length):
    """The options of a mention, defaults included, checked against their annotations; lengths are
    in tokens.
    """
    fields = options_of(cls) | {"per_layer": (bool, cls.per_layer)}
    names = ", ".join(fields)
    for option in mention.options:
        if option not in fields:
            raise UserError(f"{mention.name} has no option {option}; it has {names}")
    context = {"first_length": first_length}
    reasons = []
    options = {}
    for option, (annotation, default) in fields.items():
        value = mention.options.get(option, default)
        try:
            if value is ...:
                reasons.append(f"{option}: Field required")
            elif value is not None or default is not None:  # a default of None needs no type
                value = type_adapter(annotation).validate_python(
                    value, strict=True, context=context
                )
        except ValidationError as error:
            reasons += [f"{option}: {e['msg']}" for e in error.errors()]
        options[option] = value
    if reasons:
        raise UserError(f"{mention.name}: {'; '.join(reasons)}. Its options: {names}")
    return options


def layers_of(mention, cls, expression, n_layer, extends):
    """The layers in which a mention acts; UserError if its class cannot act so."""
    name = mention.name
    layers = [n for n in range(n_layer) if mention in mentions_in(expression.pattern, n)]
    in_all = len(layers) == n_layer
    methods = methods_of(cls)
    if extends and not layers:
        raise UserError(f"{name} is in none of the {n_layer} layers of '{expression.text:.80}'")
    if extends and not in_all and not any(method.by_layer for method in methods):
        raise UserError(f"{name} extends all layers or none: join with + instead of |")
    for method in methods:
        if method.of == "schemes" and issubclass(cls, Extension):
            raise UserError(
                f"{name} has {method.name}, which does nothing in an extension: make it a scheme, "
                "a subclass of posenc.Piece"
            )
    return layers


def construct(cls, shape, options):
    """A piece of a class, with these options; UserError if the code of the class fails."""
    try:
        return cls(shape, **options).train()  # fails if __init__ did not call super().__init__()
    except UserError:
        raise
    except Exception as error:  # a user's own class may raise anything
        raise UserError(
            f"{Path(inspect.getfile(cls)).name}: {cls.__name__}.__init__ raises "
            f"{type(error).__name__}: {error!s:.300}; it takes (self, shape, *, "
            "option=default), begins with super().__init__(), and reads n_head, "
            "turned_width, width and first_length of shape"
        ) from error


def extended_frequencies(
    extend: str,
    head_dim: int,
    base: float = 10000.0,
    *,
    train_length: int,
    length: int | None = None,
) -> tuple[Tensor, float]:
    """RoPE's (inv_freq, attention_factor) under an extension such as "yarn(factor=4)".

    `train_length` is the training length, `length` that of the text (by default the same).
    """
    scheme = Scheme(f"rope(base={base})", Shape(1, head_dim, head_dim, train_length), 1)
    scheme.extend(extend)
    return scheme.rotary[0].frequencies(length or train_length, scheme.maps)


# ---- which pieces can be combined: see posenc.METHODS


def claims(piece):
    """The set of what a piece claims: in a layer, only one piece may claim it."""
    claimed = {method.claims for method in methods_of(piece)} - {""}
    claimed.update(f"mixing at {place}" for place in piece.mixes)
    if isinstance(piece, Rotary):  # such as resonance, which rounds the frequencies of another map
        claimed.discard("frequencies")
    return claimed


def depends_on(piece):
    """Which of positions, distances and frequencies the result of a piece may depend on."""
    found = {"frequencies"} if isinstance(piece, Rotary) else set()
    if piece.features is None:  # scores made from features do not
        for method in methods_of(piece):
            found.update(method.reads)
    return found


def changes(piece):
    """Which of positions, distances and frequencies a piece changes for those that read them."""
    return {method.changes for method in methods_of(piece)} - {""}


def check_layer(schemes, extensions, subject):
    """Raise UserError if the schemes of one layer and their extensions cannot be combined; it
    begins with `subject`, the expressions.
    """
    # each pair in both orders: most rules are those of a about b
    for a, b in itertools.permutations([*schemes, *extensions], 2):
        reason = clash(a, b, extensions)
        if reason:
            raise UserError(f"{subject}: {scheme_name(a)} and {scheme_name(b)} {reason}")


def clash(a, b, extensions):
    """Why piece a cannot act in the same layer as piece b; "" if it can."""
    name = scheme_name(a)
    other = scheme_name(b)
    reads_positions = "positions" in depends_on(b)
    shared = claims(a) & claims(b)
    if (a in extensions) != (b in extensions):  # an extension may change what a scheme claims
        shared -= {"position ids", "rotation"}
    if shared:
        return f"both claim the {min(shared)}: keep one"

    if other in a.conflicts:
        return "cannot be used in the same layer"
    if "positions" in a.conflicts and (reads_positions or changes(b) - {"frequencies"}):
        return f"cannot be combined: only {name} can read the positions it sets"
    if a.extends and reads_positions and other not in a.extends:
        return f"cannot be combined: {name} extends {' or '.join(a.extends)} only"

    # embeddings are added once for all layers, and a table has vectors for whole positions only;
    # an extension makes positions real numbers, or different ones in each layer
    moves = a in extensions and "positions" in changes(a)
    if moves and b.embed and (b.limit or a.per_layer):
        return f"cannot be combined: {other} has vectors for whole positions only"

    if a.regions and b.turn_back:  # attention would rewrite the distances of scores alone
        return f"cannot be combined: {other} turns values, whose distances {name} does not rewrite"

    # b draws positions of a longer text: a factor that grows with the text would count twice
    if b.draw and a in extensions and a.factor_grows:
        return f"both assume a longer text: give a fixed factor to {name}"
    return ""


# ---- what a forward pass needs


@dataclass(frozen=True)
class Pass:
    """What a forward pass needs to know about positions."""

    skip: int  # how many of the new tokens, at the start, are left out
    embedded: Tensor | None  # added to the embeddings of the others, (T, C) or (B, T, C)
    plans: list[Plan]  # of each layer, prepared


def first_with(pieces, method):
    """The first piece that defines a method of the contract, such as "embed"; None if none does."""
    for piece in pieces:
        if getattr(piece, method):
            return piece
    return None


def tables_of(piece, ids, total, maps):
    """What a piece turns queries or keys at these ids by; nothing if there is no such piece."""
    return piece.tables(ids, total, maps) if piece else ()


def extended_ids(extensions: Iterable[Piece], ids: Tensor, total: int) -> Tensor:
    """Position ids (S,) after the changes by these extensions, in a text of `total` tokens."""
    for piece in extensions:
        if piece.ids:
            ids = piece.ids(posenc.as_reals(ids), total)
    return ids


# ---- the scheme of a model


class Scheme(nn.Module):
    """The pieces of a position expression, built and checked for a model with n_layer layers.

    `layers[n]` are the keys in `pieces` of those that act in layer n. `extensions` are the pieces
    of the active `extend` expression, and `extend_text` is its canonical text. `plan_keys[n]` are
    the keys of layer n's pieces and of its extensions: layers with the same keys share a plan.
    UserError if the expression does not fit the model.
    """

    def __init__(self, text: str, shape: Shape, n_layer: int, catalogue: Catalogue | None = None):
        super().__init__()
        self.expression = parse(text)
        self.text = self.expression.text
        self.shape = shape
        self.catalogue = catalogue or Catalogue()
        pieces, self.layers = build(self.expression, n_layer, shape, self.catalogue)
        self.pieces = nn.ModuleDict(pieces)
        for key, piece in pieces.items():
            if shape.latent and (piece.turn_back or "latent attention" in piece.conflicts):
                raise UserError(f"{scheme_name(piece)} needs whole heads: leave kv_lora_rank out")
            for at, rows in piece.mixes.items():
                shape.width_at(at)  # UserError if there is no such place
                if not isinstance(rows, int) or rows < 1:
                    raise UserError(
                        f"{scheme_name(piece)}: mixes has {rows!r} rows at {at!r}, which must be a "
                        "whole number, 1 for the token alone"
                    )
            is_once = "embedding" in piece.mixes or any(m.once for m in methods_of(piece))
            if is_once and (piece.per_layer or not all(key in keys for keys in self.layers)):
                raise UserError(
                    f"{scheme_name(piece)} acts once, before the first layer, so it cannot be "
                    f"per_layer or in a pattern: write 'SCHEME + (... | ...)' instead of "
                    f"'{self.text:.80}'"
                )
        self.depends_on = set().union(*map(depends_on, pieces.values()))  # such as "positions"
        limits = [piece.limit for piece in pieces.values() if piece.limit and not piece.ids]
        self.id_limit = min(limits, default=None)  # of the smallest table: ids are below it
        # the longest text: a piece that changes ids, such as randomized, sets it alone
        self.limit = self.ids_piece.limit if self.ids_piece else self.id_limit
        # an empty buffer whose device is that of the model; of integers, which have no precision
        self.register_buffer("device_marker", torch.empty(0, dtype=torch.long), persistent=False)
        self.register_buffer("drawn_ids", None, persistent=False)  # see draw
        self.extend_text = ""
        self.extensions = nn.ModuleDict()
        self.extend("")  # no extension yet: this checks the pieces, and makes plan_keys

    def extend(self, text: str, folder: Path | None = None) -> None:
        """Activate an `extend` expression, replacing the current one; "" for none.

        Frequency maps act in `Rotary.frequencies`, which `plans` calls through `Rotary.tables`.
        Only they and temperatures can be limited to some layers, as in 'none | yarn'. Files named
        by options are looked up in `folder` first. Activating the current expression again keeps
        what it learned. UserError if the expression does not fit the scheme.
        """
        expression = parse(text or "none")
        shape = replace(self.shape, extends=True, folder=folder)
        extensions, layers = build(expression, len(self.layers), shape, self.catalogue)
        plan_keys = list(zip(self.layers, layers, strict=True))
        subject = f"'{self.text:.80}'"  # what an error is about
        if extensions:
            subject = f"{expression.text} does not extend {self.text:.80}"
        for keys, extension_keys in plan_keys:
            extending = [extensions[key] for key in extension_keys]
            check_layer([self.pieces[key] for key in keys], extending, subject)
        for piece in extensions.values():
            if not changes(piece) <= self.depends_on:
                raise UserError(f"{subject}: no piece reads what {scheme_name(piece)} changes")
        active = nn.ModuleDict(extensions).to(self.device_marker.device)
        maps = [piece for piece in active.values() if piece.map_frequencies]
        # last those that change the result of the others: rotary ones, such as resonance and clip
        rotary_maps = [piece for piece in maps if isinstance(piece, Rotary)]
        maps = [piece for piece in maps if piece not in rotary_maps] + rotary_maps
        for rotary in self.rotary:  # so that a map fails here rather than in the first step
            rotary.frequencies(2 * self.shape.first_length, maps)
        if expression.text == self.extend_text:
            active.load_state_dict(self.extensions.state_dict())
        self.extend_text = expression.text if extensions else ""
        self.extensions = active
        self.maps = maps
        self.plan_keys = plan_keys

    def factor(self, total: int) -> float | None:
        """The factor of the active extension for a text of `total` tokens.

        None if no extension has a factor; that of the first one if several do.
        """
        piece = first_with(self.extensions.values(), "factor")
        return piece.factor(total) if piece else None

    # ---- positions

    @property
    def rotary(self) -> list[Rotary]:
        """The rotary pieces."""
        return [piece for piece in self.pieces.values() if isinstance(piece, Rotary)]

    @property
    def ids_piece(self) -> Piece | None:
        """The piece that changes position ids, if there is one."""
        return first_with(self.pieces.values(), "ids")

    def mixed_before(self, layer: int) -> int:
        """How many tokens back a layer mixes, at all its places together; for the first layer,
        those of the embedding too.
        """
        count = 0
        for key in self.layers[layer]:
            for at, rows in self.pieces[key].mixes.items():
                if at != "embedding" or layer == 0:
                    count += rows - 1
        return count

    def first_needed(self, length: int, n_queries: int, window: int) -> int:
        """The first of `length` tokens on which the last `n_queries` depend, if in every layer keys
        are limited to i - j < window.

        For example, with 2 layers, 10 tokens, window = 3 and n_queries = 2:

            token                0 1 2 3 4 5 6 7 8 9
            output of layer 1    . . . . . . . . x x    the queries
            output of layer 0    . . . . . . x x x x    and the window - 1 tokens before
            embedding            . . . . x x x x x x    and those before them: 4 is the first

        A layer that mixes needs as many more as it reaches back. It is 0 if pieces may read other
        tokens too (features, score), or if a mask depends on where in the text a key is.
        """
        for p in [*self.pieces.values(), *self.extensions.values()]:
            if p.features or p.score or p.mask and not p.by_distance:
                return 0
        before = sum(window - 1 + self.mixed_before(layer) for layer in range(len(self.layers)))
        return max(0, length - n_queries - before)

    def check_length(self, total: int) -> None:
        """Raise UserError if a text of `total` tokens has more positions than the scheme."""
        if self.limit is not None and total > self.limit:
            raise UserError(
                f"{self.text} has only {self.limit} positions, too few for a text of {total} tokens"
            )

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Position ids (S,) of the tokens at `index` (S,) in a text of `total` tokens."""
        if self.ids_piece is None:
            return index
        return self.check_ids(self.ids_piece.ids(index, total))

    def check_ids(self, ids: Tensor) -> Tensor:
        """Return the ids unchanged; UserError if one is too high for the scheme's tables.

        In eager code this waits for the device; compiled code skips the check.
        """
        can_check = self.id_limit and has_numbers(ids)
        if can_check and (ids.min() < 0 or ids.max() >= self.id_limit):
            raise UserError(
                f"{self.text} defines positions 0 to {self.id_limit - 1}, not {ids.min()} to "
                f"{ids.max()}"
            )
        return ids

    def draw(self, seed: int, step: int, length: int) -> Tensor | None:
        """Random position ids (length,) for a training step; None if the scheme draws none.

        They depend only on seed and step, so that all processes draw the same. A model in
        training uses them until the next call. UserError if the scheme cannot draw that many.
        """
        self.drawn_ids = None
        piece = first_with([*self.pieces.values(), *self.extensions.values()], "draw")
        if piece is None:
            return None
        generator = torch.Generator().manual_seed(mixed_seed(seed, step))
        ids = piece.draw(length, generator)
        if (ids.diff() < 0).any():
            raise UserError(f"{scheme_name(piece)}: draw must give ids in ascending order")
        # asynchronous on a GPU
        self.drawn_ids = self.check_ids(ids).to(self.device_marker.device, non_blocking=True)
        return self.drawn_ids

    def embed(self, ids: Tensor, tokens: Tensor, total: int) -> Tensor | None:
        """What is added to the token embeddings, (T, C) or (B, T, C), or None.

        ids (T,) are the positions of the last T of the tokens (B, S).
        """
        piece = first_with(self.pieces.values(), "embed")
        if piece is None:
            return None
        return piece.embed(extended_ids(self.extensions.values(), ids, total), tokens, total)

    def plan_pass(
        self,
        tokens: Tensor,
        new: int,
        total: int,
        options: Options,
        window: int | None = None,
        n_queries: int | None = None,
        starts: Tensor | None = None,
    ) -> Pass:
        """What a forward pass of the last `new` of the tokens (B, S) so far needs, in a text that
        will have `total` tokens.

        `window` hides keys with i - j >= window. The last layer has only the last `n_queries` as
        queries, and as many before them as it mixes in. UserError if the text is too long for
        the scheme. `starts` (B, T) cut whole texts into documents: see `attention.cut`.

        Decoding: tokens (1, 101), of which 100 are in the cache: new = 1, total = 500.
        A windowed test: tokens (1, 4096), new = total = 4096, window = 128, n_queries = 32: of 4
        layers, 3,556 tokens are skipped.
        """
        self.check_length(total)
        n_queries = n_queries or new
        skip = self.first_needed(new, n_queries, window) if window else 0
        new -= skip
        # the places in the text of all tokens that are not skipped; these keep their positions
        index = materialize(torch.arange(tokens.shape[1], device=tokens.device))[skip:]
        with no_autocast(tokens):  # positions stay in full precision
            if self.training and self.drawn_ids is not None and skip + new == total:
                ids = self.drawn_ids[skip:total]
            else:
                ids = self.ids(index, total)
            embedded = self.embed(ids[-new:], tokens, total)
            plans = self.plans(index, ids, new, total, options, window)
            if starts is not None:
                plans = {keys: cut(plan, starts) for keys, plan in plans.items()}
                if embedded is not None:
                    if embedded.dim() > 2:
                        raise UserError(
                            f"{self.text} embeds by earlier tokens: set --documents=pad"
                        )
                    embedded = embedded[index - starts]
            prepared = {keys: prepare(plan) for keys, plan in plans.items()}
            layers = [prepared[keys] for keys in self.plan_keys]
            # what is mixed after attention needs rows before those of the queries
            n_queries += self.mixed_before(len(layers) - 1)
            if n_queries < new:
                last = slice_queries(plans[self.plan_keys[-1]], new - n_queries, new)
                layers[-1] = prepare(last)
        return Pass(skip, embedded, layers)

    def plans(
        self,
        index: Tensor,
        ids: Tensor,
        new: int,
        total: int,
        options: Options,
        window: int | None = None,
    ) -> dict[tuple, Plan]:
        """One plan for each distinct entry of `plan_keys`.

        index (S,) are the places in the text of all tokens so far, the last `new` of which are
        queries; ids (S,) are their positions in a text of `total` tokens. `window` hides keys with
        i - j >= window.
        """
        plans = {}
        for keys, extension_keys in dict.fromkeys(self.plan_keys):
            schemes = [self.pieces[key] for key in keys]
            extensions = [self.extensions[key] for key in extension_keys]
            pieces = [*schemes, *extensions]
            if window is not None:
                pieces.append(Window(self.shape, size=window))
            temperature = None
            for piece in pieces:
                if piece.temperature:
                    factors = piece.temperature(index[-new:].to(options.dtype))[..., None]
                    temperature = factors if temperature is None else temperature * factors
            turn_piece = first_with(schemes, "tables")
            maps = [piece for piece in self.maps if piece in extensions]
            key_ids = extended_ids(extensions, ids, total)
            query_ids = key_ids[-new:]
            turned = tables_of(turn_piece, query_ids, total, maps)
            plan = Plan(
                options=options,
                query_ids=query_ids,
                key_ids=key_ids,
                query_tables=turned,
                key_tables=turned,  # new keys are turned before they are cached
                temperature=temperature,
                biases=[piece for piece in schemes if piece.bias],
                masks=[piece for piece in pieces if piece.mask],
                turn_piece=turn_piece,
                n_head=self.shape.n_head,
                turned_width=self.shape.turned_width,
                score_piece=first_with(schemes, "score"),
                mix_pieces={at: piece for piece in schemes for at in piece.mixes},
                features_piece=first_with(schemes, "features"),
                weights_piece=first_with(pieces, "weights"),
                output_piece=first_with(pieces, "output"),
                pack_piece=first_with(extensions, "pack"),
                # nothing has changed the places on the way
                plain_ids=ids is index and not first_with(extensions, "ids"),
            )
            regions_piece = first_with(extensions, "regions")
            rewritten = []
            if regions_piece and (turn_piece or plan.biases):
                rewritten = regions_piece.regions(total)
            if rewritten:  # attention turns all keys, cached ones too
                plan = replace(plan, key_tables=tables_of(turn_piece, key_ids, total, maps))
            regions = []
            for region in rewritten:
                i = region.query(query_ids)
                j = region.key(key_ids)
                part = replace(
                    plan,
                    query_ids=i,
                    key_ids=j,
                    query_tables=tables_of(turn_piece, i, total, maps),
                    key_tables=tables_of(turn_piece, j, total, maps),
                    where=region.where,
                )
                regions.append(part)
            if regions:
                plan = replace(plan, regions=regions)
            plans[keys, extension_keys] = plan
        return plans

    # ---- description

    def describe(self) -> str:
        """Which pieces act in which layers, with their options, in a line or two of text."""
        n_layer = len(self.layers)
        by_schemes = {}  # {"rope + logn": ["0", "2"], "nope": ["1", "3"]}
        for layer in range(n_layer):
            mentions = mentions_in(self.expression.pattern, layer)
            schemes = " + ".join(mention.text for mention in mentions)
            by_schemes.setdefault(schemes, []).append(str(layer))
        if len(by_schemes) == 1:
            text = f"all {n_layer} layers: {schemes}"  # the only ones
        else:
            lines = [f"{', '.join(layers)}: {schemes}" for schemes, layers in by_schemes.items()]
            text = f"layers {'; '.join(lines)}"
        if self.ids_piece and "positions" not in self.depends_on:
            text += f"; nothing reads the positions of {scheme_name(self.ids_piece)}"
        if self.extend_text:
            text += f", extended by {self.extend_text}"
        return text


# ---- the files that define a scheme


def scheme_files(scheme: Scheme) -> dict:
    """{name: path} of the files that define the pieces of a scheme: those of their classes and of
    the classes that these derive from, all that a user's file has imported from its own folder, and
    the files that options name.

    Names are such as "posenc.py", "zoo/fire.py", "pos_file.py", or "helper.py" for a module beside
    the user's file, and "files/factors.json" for a file that an option names.
    """
    files = {"posenc.py": ROOT / "posenc.py"}
    for piece in (*scheme.pieces.values(), *scheme.extensions.values()):
        if piece.file:
            name = f"files/{piece.file.name}"
            if sha256(files.setdefault(name, piece.file)) != sha256(piece.file):
                raise UserError(f"two files are called {piece.file.name}: rename one of them")
        for cls in type(piece).mro():
            if not issubclass(cls, Piece):
                continue
            path = Path(inspect.getfile(cls)).resolve()
            if path.parent == ZOO:
                files[f"zoo/{path.name}"] = path
            elif path == scheme.catalogue.pos_file:
                files[OWN_FILE] = path
                _, helpers = load_file(path)
                for helper in helpers:
                    files[helper.relative_to(path.parent).as_posix()] = helper
    return files


def scheme_digests(scheme: Scheme) -> dict:
    """{name: SHA-256} of the `scheme_files`."""
    return {name: sha256(path) for name, path in scheme_files(scheme).items()}


def is_builtin(name: str) -> bool:
    """Whether a scheme's file is one of this program, which run folders need no copy of."""
    return name == "posenc.py" or name.startswith("zoo/")
