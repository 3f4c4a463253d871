"""From the text of a position expression to what attention needs in each layer.

    rope(base=500000) + alibi       pieces that act together
    rope | rope | rope | nope       a pattern over layers: layer n takes branch n mod 4
    3 * rope | nope                 the same with one rope, which three layers share

First the grammar: text in, data out. Then the look-up: the class of a name, the piece of a mention.
Then what goes together. Then `Scheme`, which holds the pieces of a model and makes a `Plan` for
each forward.
"""

import ast
import copy
import difflib
import hashlib
import importlib.util
import inspect
import itertools
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

import posenc
from configurable import UserError, mixed_seed
from posenc import Extension, Piece, Rotary, Scaled, Shape, Table, apply_maps, scheme_name

ZOO = Path(__file__).resolve().parent / "zoo"
LARGEST = 2**53  # up to here a float holds every integer
MOST_BRANCHES = 1024


# ---- the grammar


@dataclass(frozen=True)
class Mention:
    """One name in an expression, with its options, its canonical text, and the layers it acts in.

    `pattern` holds (its branches, number of branches) for each pattern around it. `per_layer` is
    the option of that name, which every scheme has; None where it is not set.
    """

    name: str
    options: dict[str, bool | int | float | str]
    text: str
    pattern: tuple[tuple[tuple[int, ...], int], ...] = ()
    per_layer: bool | None = None

    def acts_in(self, layer: int) -> bool:
        """Whether it acts in that layer, counted from 0."""
        return all(layer % count in branches for branches, count in self.pattern)


@dataclass(frozen=True)
class Expression:
    """A position expression: its canonical text, and its mentions from left to right."""

    text: str
    mentions: tuple[Mention, ...]


def parse(text: str) -> Expression:
    """Read an expression; UserError for what is none.

    Whether the names exist is not looked up here.
    """
    if len(text) > 500 or not text.isascii():
        raise UserError("a position expression has at most 500 ASCII characters")
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


def _mentions(node, pattern):
    """The mentions in a part of an expression, from left to right."""
    operator = node.op if isinstance(node, ast.BinOp) else None
    if isinstance(operator, ast.Add):
        yield from _mentions(node.left, pattern)
        yield from _mentions(node.right, pattern)
    elif isinstance(operator, ast.BitOr | ast.Mult):
        branches = _branches(node)
        for branch in dict.fromkeys(branches):  # one that is repeated is one mention
            numbers = tuple(n for n, other in enumerate(branches) if other is branch)
            yield from _mentions(branch, (*pattern, (numbers, len(branches))))
    elif isinstance(node, ast.Name):
        yield Mention(node.id, {}, node.id, pattern)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        options = _options(node)
        per_layer = options.pop("per_layer", None)
        if not isinstance(per_layer, bool | None):
            raise UserError(f"per_layer is True or False, not {per_layer!s:.60}")
        yield Mention(node.func.id, options, ast.unparse(node), pattern, per_layer)
    else:
        sentence = f"{ast.unparse(node)!r:.80} is not a position scheme: an expression joins names"
        ways = "with + (together) and | (a pattern over layers)"
        raise UserError(f"{sentence} such as rope or t5(buckets=16) {ways}")


def _branches(node):
    """The branches of a chain of `|`, where `3 * (a | b)` stands for a | b | a | b | a | b."""
    branches = [node]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        branches = _branches(node.left) + _branches(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        count = getattr(node.left, "value", None)
        if type(count) is not int or not 1 <= count <= MOST_BRANCHES:
            sentence = "a repeat is a whole number before the branch, as in 3 * rope | nope"
            raise UserError(f"{sentence}, not {ast.unparse(node):.80}")
        branches = _branches(node.right) * count
    if len(branches) > MOST_BRANCHES:
        raise UserError(f"a pattern over layers has at most {MOST_BRANCHES} branches")
    return branches


def _options(node):
    """The options of one mention by name: numbers, True, False and words."""
    text = ast.unparse(node)
    options = {}
    for option in node.keywords:
        if isinstance(option.value, ast.Name):  # a bare word, as in kind=log
            value = option.value.id
        else:
            try:
                value = ast.literal_eval(option.value)
            except ValueError:
                value = None
        is_number = isinstance(value, int | float) and abs(value) <= LARGEST
        if not is_number and not (isinstance(value, str) and value.isprintable()):
            wanted = "a value is a number of at most 2**53, True, False or a word"
            raise UserError(f"in {text:.80}: {wanted}, not {ast.unparse(option.value):.60}")
        options[option.arg] = value
    if not options or node.args or None in options:
        right = f"{node.func.id:.60} or {node.func.id:.60}(option=value)"
        raise UserError(f"options have names: write {right}, not {text:.80}")
    if len(options) < len(node.keywords):
        raise UserError(f"an option is set twice in {text:.80}")
    return options


# ---- the look-up


@lru_cache
def load_file(path: Path) -> dict[str, type[Piece]]:
    """The pieces that a Python file defines, by name. The file is run. UserError if it has none."""
    if not path.is_file() or path.suffix != ".py":
        raise UserError(f"there is no Python file {path} to take position schemes from")
    name = f"pos_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    # torch.compile looks a function's module up by its name
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's own file may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} cannot be run: {reason}; correct it, or see --debug") from error
    pieces = pieces_of(module)
    if not pieces:
        raise UserError(f"{path} defines no subclass of posenc.Piece")
    return pieces


def pieces_of(module):
    """The schemes and extensions that a module defines itself, by name."""
    pieces = {}
    for cls in vars(module).values():
        is_piece = isinstance(cls, type) and issubclass(cls, Piece)
        if is_piece and cls.__module__ == module.__name__:
            if cls not in (Piece, Rotary, Extension, Scaled):
                pieces[scheme_name(cls)] = cls
    return pieces


def scheme_names(pos_file: Path | None = None) -> list[str]:
    """Every scheme that `pos` may name."""
    return [n for n in _all_names(pos_file) if not issubclass(find(n, pos_file), Extension)]


def extension_names(pos_file: Path | None = None) -> list[str]:
    """Everything that `extend` may name."""
    return [name for name in _all_names(pos_file) if find(name, pos_file).can_extend]


def _all_names(pos_file):
    users = load_file(Path(pos_file)) if pos_file else {}
    return sorted({*pieces_of(posenc), *(path.stem for path in ZOO.glob("[a-z]*.py")), *users})


def find(name: str, pos_file: Path | None = None, kind: str = "position scheme") -> type[Piece]:
    """The class of that name: from the user's file, from posenc.py, or from zoo/NAME.py.

    A wrong name is refused (UserError) with the nearest right one and all of that kind: "position
    scheme" or "extension".
    """
    users = load_file(Path(pos_file)) if pos_file else {}
    textbook = pieces_of(posenc)
    taken = [n for n in sorted(users) if n in textbook or (ZOO / f"{n}.py").exists()]
    if taken:
        clash = f"{pos_file} defines {', '.join(taken)}, a name that the project already has"
        raise UserError(f"{clash}: rename the class")
    if name in users:
        return users[name]
    if name in textbook:
        return textbook[name]
    every_name = _all_names(pos_file)
    if name in every_name:
        pieces = load_file(ZOO / f"{name}.py")
        if name not in pieces:
            defined = ", ".join(pieces)
            raise UserError(f"zoo/{name}.py defines {defined}, but no class for {name}")
        return pieces[name]
    names = extension_names(pos_file) if kind == "extension" else scheme_names(pos_file)
    near = difflib.get_close_matches(name, every_name, 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "your own needs --pos_file=FILE.py."
    raise UserError(f"there is no {kind} {name:.60}; {hint} There are: {', '.join(names)}")


def options_of(cls: type[Piece]) -> dict[str, inspect.Parameter]:
    """A scheme's options: the keyword-only arguments of its __init__, annotations and defaults."""
    arguments = inspect.signature(cls.__init__, eval_str=True).parameters
    return {name: o for name, o in arguments.items() if o.kind is o.KEYWORD_ONLY}


def build(mention: Mention, shape: Shape, pos_file: Path | None = None) -> Piece:
    """The piece of one mention; UserError lists the options where one is wrong or missing."""
    name = mention.name
    cls = find(name, pos_file)
    options = options_of(cls)
    labels = [key if o.default is o.empty else f"{key}={o.default}" for key, o in options.items()]
    listed = f"its options: {', '.join(labels) or 'none'}"
    values = {}
    for key, value in mention.options.items():
        if key not in options:
            near = difflib.get_close_matches(key, options, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"{name} has no option {key:.60}; {hint}{listed}")
        values[key] = value
        if options[key].annotation is not inspect.Parameter.empty:
            check = TypeAdapter(options[key].annotation)
            try:
                context = {"length": shape.length}
                values[key] = check.validate_python(value, strict=True, context=context)
            except ValidationError as error:
                reasons = dict.fromkeys(e["msg"] for e in error.errors())
                wanted = " or ".join(reason.removeprefix("Input should be ") for reason in reasons)
                sentence = f"{name}: {key}={value!s:.60} does not fit: it must be {wanted}"
                raise UserError(f"{sentence}; {listed}") from None
    missing = [key for key, o in options.items() if o.default is o.empty and key not in values]
    if missing:
        raise UserError(f"{name} needs {' and '.join(missing)}; {listed}")
    return cls() if cls.__init__ is Piece.__init__ else cls(shape, **values)


def build_extensions(expression: Expression, shape: Shape, pos_file: Path | None) -> list[Piece]:
    """The pieces of an `extend` expression, a frequency map that goes last at the end.

    UserError for what is no extension.
    """
    pieces = []
    for mention in expression.mentions:
        if mention.pattern:
            sentence = "an extension acts on all layers: join with + instead of |"
            raise UserError(f"{sentence} in '{expression.text:.80}'")
        cls = find(mention.name, pos_file, "extension")
        if not cls.can_extend:
            sentence = f"{mention.name} is no extension of a trained model"
            advice = f"train with it (--pos). Extensions: {', '.join(extension_names(pos_file))}"
            raise UserError(f"{sentence}: {advice}")
        piece = build(mention, replace(shape, trained=True), pos_file)
        piece.per_layer = cls.per_layer if mention.per_layer is None else mention.per_layer
        pieces.append(piece)
    return sorted(pieces, key=lambda piece: piece.goes_last)


def extended_frequencies(
    extend: str,
    head_dim: int,
    base: float = 10000.0,
    *,
    train_length: int,
    length: int | None = None,
) -> Table:
    """RoPE's (inv_freq, attention_factor) under an extension such as "yarn(factor=4)".

    The model was trained at `train_length` and reads `length` tokens, by default as many.
    UserError for what is more than a map of frequencies.
    """
    maps = build_extensions(parse(extend), Shape(1, head_dim, head_dim, train_length), None)
    if any(piece.map_frequencies is None for piece in maps):
        raise UserError(f"{extend:.80} is more than a map of frequencies")
    inv_freq, _ = posenc.rope_frequencies(head_dim, base)
    return apply_maps(inv_freq, base, maps, length or train_length)


# ---- what goes together

# what only one piece of a layer may claim by a method, and only one of an extension may change
CLAIMS = {
    "ids": "position ids",
    "draw": "positions of training",
    "embed": "token embedding",
    "tables": "rotation",
    "regions": "distances",
    "pack": "cache",
    "weights": "attention weights",
    "output": "output of the heads",
}


def check_claims(pieces, text):
    """Raise UserError where two pieces of the expression `text` claim the same."""
    for a, b in itertools.combinations(pieces, 2):
        both = f"'{text:.80}': {scheme_name(a)} and {scheme_name(b)} both claim the"
        if type(a) is type(b):
            raise UserError(f"'{text:.80}': {scheme_name(a)} is named twice in one layer: keep one")
        for method, what in CLAIMS.items():
            if getattr(a, method) and getattr(b, method):
                raise UserError(f"{both} {what}: keep one")
        if claims_score(a) and claims_score(b):
            raise UserError(f"{both} whole score: keep one")


def claims_score(piece):
    """Whether a piece makes the whole score, or what scores are made of, in each layer anew."""
    return piece.score is not None or piece.features is not None


def moves_positions(piece):
    """Whether a piece gives tokens other positions than their places."""
    return piece.ids is not None or piece.draw is not None


def reads_positions(piece):
    """Whether what a piece computes depends on position ids."""
    acts = piece.embed or piece.tables or piece.bias or claims_score(piece)
    return piece.reads_ids and bool(acts)


def check_layer(pieces, text):
    """Raise UserError where pieces of the expression `text` cannot act in one layer."""
    check_claims(pieces, text)
    for a, b in itertools.permutations(pieces, 2):
        if scheme_name(b) in a.conflicts:
            both = f"{scheme_name(a)} and {scheme_name(b)} cannot act in one layer"
            raise UserError(f"'{text:.80}': {both}: {scheme_name(a)} says so (`conflicts`)")


def check_positions(pieces, text):
    """Raise UserError where a piece of the scheme `text` cannot have the positions of another."""
    for a, b in itertools.permutations(pieces, 2):
        if a.ids is None:
            continue
        first = f"'{text:.80}': {scheme_name(a)}"
        second = scheme_name(b)
        if a.private_ids and reads_positions(b):
            raise UserError(f"{first} gives places that only it can read, and {second} reads them")
        if a.limit and b.limit and b.limit < a.limit:
            more = f"more than the {b.limit} rows of {second}"
            raise UserError(f"{first} gives positions up to {a.limit}, {more}")
        if b.whole_ids and b.limit is None:
            raise UserError(f"{first} changes positions, and {second} needs 0 ... N - 1")
        if a.continuous and b.whole_ids:
            reason = f"{second} has a vector for each whole one only"
            raise UserError(f"{first} gives positions in between, and {reason}")


def check_extension(pieces, text):
    """Raise UserError where pieces of the extension `text` cannot act together."""
    check_claims(pieces, text)
    for a, b in itertools.permutations(pieces, 2):
        both = f"'{text:.80}': {scheme_name(a)} and {scheme_name(b)}"
        if a.map_frequencies and b.map_frequencies and not (a.goes_last or b.goes_last):
            raise UserError(f"{both} both change the frequencies: keep one")
        if isinstance(a, Scaled) and isinstance(b, Scaled):
            raise UserError(f"{both} both take the text to be longer by a factor: keep one")
        if a.file and b.file and a.file.name == b.file.name and a.file != b.file:
            raise UserError(f"{both} name two files of one name, a run keeps both: rename one")
        if goes_by_length(a) and b.draw:
            advice = f"give a fixed factor to {scheme_name(a)}"
            raise UserError(f"{both}: the second draws positions for another length, {advice}")


def goes_by_length(piece):
    """Whether the factor of an extension follows the length of the text."""
    if piece.factor is None or isinstance(piece, type):
        return False
    return piece.factor(2**30) != piece.factor(2**31)


def misfit(a, pieces):
    """Why an extension, or a class of them, does not fit a scheme of these pieces; or nothing."""
    for b in pieces:
        name = scheme_name(b)
        if a.regions and claims_score(b):
            return f"it rewrites distances, and {name} makes the whole score by itself"
        if b.private_ids and (moves_positions(a) or a.regions):
            return f"it changes positions along a text, and {name} has places of its own"
        if moves_positions(a) and b.whole_ids and b.ids is None:
            return f"it changes positions, and {name} has a vector for each whole one"
        if a.per_layer and a.ids and b.embed:
            return f"it cannot be per_layer here: {name} acts once, before the first layer"
        if a.extends and reads_positions(b) and name not in a.extends:
            return f"it extends {' or '.join(a.extends)} only, and {name} acts too"
        for method in ("draw", "weights", "output"):
            if getattr(a, method) and getattr(b, method):
                return f"both it and {name} claim the {CLAIMS[method]}: keep one"
        if goes_by_length(a) and b.draw:
            return f"{name} draws positions for another length: give it a fixed factor"
    if a.map_frequencies and not any(isinstance(b, Rotary) for b in pieces):
        return "it changes the frequencies of rotary pieces, and there is none"
    if a.regions and not any(b.tables or b.bias for b in pieces):
        return "it rewrites distances, and no score depends on one"
    if moves_positions(a) and not any(reads_positions(b) for b in pieces):
        return "it changes positions, and nothing reads them"
    return ""


# ---- what attention is handed in each forward


@dataclass(frozen=True)
class Part:
    """Positions of T queries and S keys, and the tables that turn them.

    Of the parts of a plan the last counts whose where(i, j) holds for the ids of query and key.
    """

    query_ids: Tensor
    key_ids: Tensor
    query_tables: tuple[Tensor, ...] = ()
    key_tables: tuple[Tensor, ...] = ()
    where: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Plan:
    """What positions do to attention in one forward, for the layers that share these pieces.

    The queries are the last T of the S tokens. With one part queries and new keys are turned before
    the cache keeps them; with several, where an extension rewrites distances, keys are kept as they
    are and attention turns them for each part.
    """

    parts: list[Part]
    temperature: Tensor | None = None  # (T, 1) or (H, T, 1)
    biases: list[Piece] = field(default_factory=list)
    masks: list[Callable[[Tensor, Tensor], Tensor]] = field(default_factory=list)
    visible: tuple[int, int] | None = None  # at most so many last and so many first keys are seen
    turning: Piece | None = None
    width: int = 0  # how many of the last columns of q and k are turned
    scorer: Piece | None = None  # it has features or makes the whole score
    weighting: Piece | None = None  # it replaces the softmax
    finishing: Piece | None = None  # it changes the output of the heads
    packing: Piece | None = None  # it says how the cache keeps keys and values
    plain_ids: bool = False  # whether ids are the places 0 ... S - 1
    by_distance: bool = False  # whether what is added to a score follows from i - j alone

    def turn(self, x: Tensor, tables: tuple[Tensor, ...], is_key: bool) -> Tensor:
        """x (B, H, T, D) with its last columns turned, in its own number format."""
        if self.turning is None:
            return x
        wide = torch.promote_types(x.dtype, torch.float32)
        rest = x.shape[-1] - self.width
        with torch.autocast(x.device.type, enabled=False):
            turned = self.turning.turn(x[..., rest:].to(wide), tables, is_key).to(x.dtype)
        return turned if rest == 0 else torch.cat((x[..., :rest], turned), -1)

    @property
    def turns_by_head(self):
        """Whether the tables of heads differ, so that heads cannot share turned keys."""
        return any(table.dim() > 2 for table in self.parts[0].query_tables)


def first(pieces, method):
    """The first of the pieces that has a method of the contract, such as "embed"."""
    return next((piece for piece in pieces if getattr(piece, method)), None)


# ---- the scheme of a model


class Scheme(nn.Module):
    """The pieces of a position expression, built and checked for a model of n_layer layers.

    `layers` has the keys of `pieces` that act in each layer; `extensions` are the pieces that an
    `extend` expression activated, and `extension` is its canonical text. Layers with the same
    pieces share one plan: `sets` are the distinct sets of keys, `set_of_layer` says which is whose.
    UserError for an expression that does not fit the model.
    """

    def __init__(self, text: str, shape: Shape, n_layer: int, pos_file: Path | None = None):
        super().__init__()
        expression = parse(text)
        self.text = expression.text
        self.shape = shape
        self.pos_file = pos_file and Path(pos_file).resolve()
        self.pieces = nn.ModuleDict()
        self.layers = []
        self.labels = []  # of each layer: what acts in it, with options
        for layer in range(n_layer):
            keys = []
            texts = []
            for number, mention in enumerate(expression.mentions):
                if mention.acts_in(layer):
                    keys.append(self._build(number, mention, layer))
                    texts.append(mention.text)
            self.layers.append(tuple(keys))
            self.labels.append(" + ".join(texts))
            check_layer([self.pieces[key] for key in keys], self.text)
        check_positions(self.pieces.values(), self.text)
        self.unused = [m for m in expression.mentions if not any(map(m.acts_in, range(n_layer)))]
        for mention in self.unused:
            build(mention, shape, self.pos_file)  # a mistake in it is a mistake all the same
        limits = [p.limit for p in self.pieces.values() if p.limit and p is not self.mover]
        self.id_limit = min(limits) if limits else None  # how many ids there are; None: any
        self.limit = self.mover.limit if self.mover else self.id_limit  # the longest text
        self.extension = ""
        self._activate([])

    def _build(self, number, mention, layer):
        """The key of a mention's piece in that layer, built if there is none."""
        name = mention.name
        cls = find(name, self.pos_file)
        if issubclass(cls, Extension):
            sentence = f"{name} extends a model that is trained already"
            raise UserError(f"{sentence}: write it as --extend={name}")
        per_layer = cls.per_layer if mention.per_layer is None else mention.per_layer
        if (cls.ids or cls.embed) and (mention.pattern or per_layer):
            sentence = f"{name} acts once, before the first layer, so"
            place = "it cannot stand inside a pattern of layers or be per_layer"
            advice = f"write 'SCHEME + (... | ...)' instead of '{self.text:.80}'"
            raise UserError(f"{sentence} {place}: {advice}")
        key = f"{number}_{name}_layer{layer}" if per_layer else f"{number}_{name}"
        if key not in self.pieces:
            self.pieces[key] = build(mention, self.shape, self.pos_file)
        return key

    # ---- extensions

    def extend(self, text: str, folder: Path | None = None) -> None:
        """Activate an `extend` expression, in place of any other; "" or "none" for none.

        UserError where it does not fit. Files that its options name are looked for in `folder`
        first. The expression that is active keeps what it learned.
        """
        canonical = ""
        extensions = []
        if text not in ("", "none"):
            expression = parse(text)
            shape = replace(self.shape, folder=folder)
            canonical = expression.text
            extensions = build_extensions(expression, shape, self.pos_file)
        check_extension(extensions, canonical)
        for piece in extensions:
            self._check_fit(piece, canonical)
        maps = [piece for piece in extensions if piece.map_frequencies]
        for piece in self.rotary:  # what a map cannot do is refused here, not in the first step
            inv_freq = piece.inv_freq.cpu()
            apply_maps(inv_freq, piece.base, maps, 2 * self.shape.length, torch.arange(1))
        learned = self.extensions.state_dict() if canonical == self.extension else {}
        self.extension = canonical
        self._activate(extensions)
        self.extensions.load_state_dict(learned, strict=bool(learned))

    def _activate(self, extensions):
        """Take these extensions: a layer has copies of its own of those that are per_layer."""
        shared = [piece for piece in extensions if not piece.per_layer]
        copied = [piece for piece in extensions if piece.per_layer]
        copies = [[copy.deepcopy(piece) for piece in copied] for _ in self.layers]
        self.extensions = nn.ModuleList([*shared, *itertools.chain(*copies)])
        self.maps = [piece for piece in extensions if piece.map_frequencies]
        self.sets = self.layers if copied else list(dict.fromkeys(self.layers))
        self.set_of_layer = [self.sets.index(keys) for keys in self.layers]
        if copied:
            self.set_of_layer = list(range(len(self.layers)))
        self.extensions_of_set = [[*shared, *copies[n]] for n in range(len(self.sets))]

    def _check_fit(self, piece, text):
        """Raise UserError where a piece of the extension `text` does not fit this scheme."""
        name = scheme_name(piece)
        reason = misfit(piece, self.pieces.values())
        if reason:
            names = extension_names(self.pos_file)
            fit = [n for n in names if not misfit(find(n, self.pos_file), self.pieces.values())]
            advice = "" if name in fit else f". What fits: {', '.join(fit)}"
            raise UserError(f"{name} does not extend {self.text:.80}: {reason}{advice}")
        learns = any(True for _ in piece.parameters()) and not piece.map_frequencies
        if piece.per_layer and not learns:
            sentence = f"{name} learns nothing that a layer could have for itself"
            raise UserError(f"{sentence}: leave per_layer out of '{text:.80}'")

    def factor(self, total: int) -> float | None:
        """How many times longer the active extension takes a text of `total` tokens to be.

        None where it has no such number. Of several, one that is built on a factor counts first.
        """
        pieces = sorted(self.extensions, key=lambda piece: not isinstance(piece, Scaled))
        factors = [piece.factor(total) for piece in pieces if piece.factor]
        return factors[0] if factors else None

    # ---- positions

    @property
    def rotary(self) -> list[Rotary]:
        """The rotary pieces."""
        return [piece for piece in self.pieces.values() if isinstance(piece, Rotary)]

    @property
    def mover(self) -> Piece | None:
        """The piece that gives position ids."""
        return first(self.pieces.values(), "ids")

    def check_length(self, total: int) -> None:
        """Raise UserError if a text of `total` tokens has positions that the scheme lacks."""
        if self.limit is not None and total > self.limit:
            defined = f"{self.text} defines {self.limit} positions"
            raise UserError(f"{defined}, a text of {total} tokens needs more")

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Position ids of the tokens at `index` in a text of `total` tokens."""
        if self.mover is None:
            return index
        ids = self.mover.ids(index, total)
        if self.id_limit and not torch.compiler.is_compiling() and not ids.is_meta:
            self.check_ids(ids)
        return ids

    def check_ids(self, ids: Tensor) -> None:
        """Raise UserError for ids that the scheme's tables lack. It waits for the device."""
        if self.id_limit and ids.numel() and int(ids.max()) >= self.id_limit:
            last = f"not one at {int(ids.max())}"
            raise UserError(f"{self.text} defines {self.id_limit} positions, {last}")

    def draw(self, seed: int, step: int, length: int) -> Tensor | None:
        """The random position ids (length,) of a training step; None if they are not random.

        They follow from seed and step, so that all processes have the same.
        """
        piece = first([*self.pieces.values(), *self.extensions], "draw")
        if piece is None:
            return None
        ids = piece.draw(length, torch.Generator().manual_seed(mixed_seed(seed, step)))
        if ids.shape != (length,) or (ids.min() < 0 and not piece.continuous):
            raise UserError(f"{scheme_name(piece)}: draw gives no {length} positions from 0 on")
        self.check_ids(ids)
        return ids

    def extended_ids(self, extensions: Collection[Piece], ids: Tensor, total: int) -> Tensor:
        """Position ids as these extensions change them."""
        for piece in extensions:
            if piece.ids:
                ids = piece.ids(posenc.widened(ids), total)
        return ids

    def embed(self, ids: Tensor, tokens: Tensor, total: int) -> Tensor | None:
        """What is added to the embedding of the last of the tokens (B, S), or None."""
        piece = first(self.pieces.values(), "embed")
        if piece is None:
            return None
        return piece.embed(self.extended_ids(self.extensions, ids, total), tokens, total)

    def plans(
        self,
        index: Tensor,
        ids: Tensor,
        new: int,
        total: int,
        dtype: torch.dtype,
        window: int | None = None,
    ) -> list[Plan]:
        """One plan for each of `sets`.

        index (S,) are the places of all tokens so far, of which the last `new` are queries, and ids
        (S,) their positions in a text of `total` tokens. dtype is float32 or wider. `window` hides
        keys with i - j >= window.
        """
        if len(self.extensions) > 0:
            total = range(total).stop  # a constant in compiled code too
        plans = []
        for keys, extensions in zip(self.sets, self.extensions_of_set, strict=True):
            schemes = [self.pieces[key] for key in keys]
            pieces = [*schemes, *extensions]
            temperature = None
            for piece in pieces:
                if piece.temperature:
                    factor = piece.temperature(index[-new:].to(dtype))[..., None]
                    temperature = factor if temperature is None else temperature * factor
            masks = [piece.mask for piece in pieces if piece.mask]
            visible = [piece.visible for piece in pieces if piece.visible]
            if window is not None:
                masks.append(lambda i, j: i - j < window)
                visible.append((window, 0))
            biases = [piece for piece in schemes if piece.bias]
            turning = first(schemes, "tables")
            rewriting = first(extensions, "regions")
            regions = []
            if rewriting and (turning or biases):
                regions = rewriting.regions(total)
            key_ids = self.extended_ids(extensions, ids, total)
            parts = []
            for region in (None, *regions):
                part = Part(key_ids[-new:], key_ids)
                if region:
                    i = region.query(part.query_ids)
                    part = Part(i, region.key(key_ids), where=region.where)
                if turning:
                    query_tables = key_tables = turning.tables(part.query_ids, total, self.maps)
                    if regions:  # all keys are turned, those of the cache too
                        key_tables = turning.tables(part.key_ids, total, self.maps)
                    part = replace(part, query_tables=query_tables, key_tables=key_tables)
                parts.append(part)
            plain_ids = ids is index and first(extensions, "ids") is None
            steady = all(piece.by_distance for piece in pieces if piece.bias or piece.mask)
            plan = Plan(
                parts=parts,
                temperature=temperature,
                biases=biases,
                masks=masks,
                visible=min(visible) if visible else None,
                turning=turning,
                width=self.shape.head_dim,
                scorer=first(schemes, "score") or first(schemes, "features"),
                weighting=first(pieces, "weights"),
                finishing=first(pieces, "output"),
                packing=first(extensions, "pack"),
                plain_ids=plain_ids,
                by_distance=plain_ids and steady,
            )
            plans.append(plan)
        return plans

    # ---- what it says of itself

    def files(self) -> dict[str, Path]:
        """{name: path} of the files that define its pieces and those that their options name.

        Names are "posenc.py", "zoo/fire.py", "pos_file.py" and the base names of option files.
        """
        files = {}
        for piece in (*self.pieces.values(), *self.extensions):
            for cls in type(piece).__mro__:  # a scheme may be built on another one
                if issubclass(cls, Piece) and cls is not Piece:
                    path = Path(inspect.getfile(cls)).resolve()
                    is_part = path.is_relative_to(ZOO.parent) and path != self.pos_file
                    files[str(path.relative_to(ZOO.parent)) if is_part else "pos_file.py"] = path
            if piece.file:
                files[piece.file.name] = piece.file
        return files

    def describe(self) -> str:
        """Which pieces act in which layers, with their options, in a line or two."""
        layers_of = {}
        for layer, label in enumerate(self.labels):
            layers_of.setdefault(label, []).append(str(layer))
        text = f"all {len(self.labels)} layers: {self.labels[0]}"
        if len(layers_of) > 1:
            lines = [f"{', '.join(layers)}: {label}" for label, layers in layers_of.items()]
            text = "layers " + "; ".join(lines)
        if self.mover and not any(reads_positions(piece) for piece in self.pieces.values()):
            name = scheme_name(self.mover)
            text += f"; nothing here reads positions, so {name} changes nothing"
        if self.extension:
            text += f", extended by {self.extension}"
        for mention in self.unused:
            cut = f"the pattern is cut at {len(self.labels)}"
            text += f"; warning: {mention.text} is in no layer ({cut})"
        return text
