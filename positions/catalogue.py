"""The catalogue of schemes: which names there are, the class of a name, the piece of a mention.

A name is looked up in a user's own --pos_file, then in posenc.py, then in zoo/. To add a scheme,
put a file into zoo/ whose class has the name of the file, in CamelCase.
"""

import difflib
import hashlib
import importlib.util
import inspect
import sys
import types
import typing
from dataclasses import replace
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path

import posenc
from configurable import UserError, require
from posenc import Extension, Grid, Piece, Rotary, Scaled, Shape, Table, scheme_name
from positions.grammar import Expression, Mention, parse

ZOO = Path(__file__).resolve().parents[1] / "zoo"


# ---- names


@lru_cache
def load_file(path: Path) -> dict[str, type[Piece]]:
    """The pieces that a Python file defines, by name. The file is run. UserError if it has none."""
    require(path.is_file(), f"there is no file {path} to take position schemes from")
    name = f"pos_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_loader(name, SourceFileLoader(name, str(path)))
    # torch.compile looks a function's module up by its name
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's own file may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} cannot be run: {reason}; correct it, or see --debug") from error
    pieces = _pieces_of(module)
    require(pieces, f"{path} defines no subclass of posenc.Piece")
    return pieces


def _pieces_of(module: types.ModuleType) -> dict[str, type[Piece]]:
    """The schemes that a module defines itself, by name."""
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Piece)]
    own = [c for c in classes if c.__module__ == module.__name__]
    shared = (Piece, Rotary, Grid, Extension, Scaled)
    return {scheme_name(c): c for c in own if c not in shared}


def scheme_names(pos_file: Path | None = None) -> list[str]:
    """Every scheme that `pos` may name."""
    return [n for n in _known(pos_file) if not issubclass(find(n, pos_file), Extension)]


def extension_names(pos_file: Path | None = None) -> list[str]:
    """Everything that `extend` may name."""
    return [name for name in _known(pos_file) if find(name, pos_file).can_extend]


def _known(pos_file: Path | None) -> list[str]:
    own = load_file(Path(pos_file)) if pos_file else {}
    return sorted({*_pieces_of(posenc), *(path.stem for path in ZOO.glob("[a-z]*.py")), *own})


def find(name: str, pos_file: Path | None = None, kind: str = "position scheme") -> type[Piece]:
    """The class of that name. A wrong name is refused (UserError) with the nearest right one and
    all of that kind: "position scheme" or "extension".
    """
    own, textbook = load_file(Path(pos_file)) if pos_file else {}, _pieces_of(posenc)
    taken = [n for n in sorted(own) if n in textbook or (ZOO / f"{n}.py").exists()]
    clash = f"{pos_file} defines {', '.join(taken)}, a name that the project already has"
    require(not taken, f"{clash}: rename the class")
    if name in own or name in textbook:
        return own.get(name) or textbook[name]
    if name in _known(pos_file):
        pieces = load_file(ZOO / f"{name}.py")
        defined = ", ".join(pieces)
        require(name in pieces, f"zoo/{name}.py defines {defined}, but no class for {name}")
        return pieces[name]
    names = extension_names(pos_file) if kind == "extension" else scheme_names(pos_file)
    among = names if kind == "extension" else _known(pos_file)  # it may be meant as an extension
    near = difflib.get_close_matches(name, among, 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "your own needs --pos_file=FILE.py."
    raise UserError(f"there is no {kind} {name:.60}; {hint} Known: {', '.join(names)}")


# ---- from mentions to pieces


def build(mention: Mention, shape: Shape, pos_file: Path | None = None) -> Piece:
    """The piece of one mention; UserError lists the options where one is wrong or missing."""
    name, cls = mention.name, find(mention.name, pos_file)
    known = options_of(cls)
    listed = ", ".join(map(str, known.values())) or "none"
    options = {}
    for key, value in mention.options.items():
        require(key in known, f"{name} has no option {key:.60}; its options: {listed}")
        kinds = _types_of(known[key])
        fits = type(value) in kinds or (type(value) is int and float in kinds)
        require(fits, f"{name}: {key}={value!s:.60} does not fit; its options: {listed}")
        options[key] = float(value) if type(value) is int and int not in kinds else value
    missing = [key for key, o in known.items() if o.default is o.empty and key not in options]
    require(not missing, f"{name} needs {' and '.join(missing)}; its options: {listed}")
    return cls(shape, **options) if cls.__init__ is not Piece.__init__ else cls()


def options_of(cls: type[Piece]) -> dict[str, inspect.Parameter]:
    """A scheme's options: the keyword-only arguments of its __init__, annotations and defaults."""
    arguments = inspect.signature(cls.__init__, eval_str=True).parameters
    return {name: o for name, o in arguments.items() if o.kind is o.KEYWORD_ONLY}


def _types_of(option: inspect.Parameter) -> tuple[object, ...]:
    """The types that an option's annotation admits; any where there is no annotation."""
    if option.annotation is option.empty:
        return int, float, str, bool
    return typing.get_args(option.annotation) or (option.annotation,)  # those of a union


def build_extensions(expression: Expression, shape: Shape, pos_file: Path | None) -> list[Piece]:
    """The pieces of an `extend` expression, a frequency map that goes last at the end.

    UserError for what is no extension.
    """
    pieces = []
    for mention in expression.mentions:
        everywhere = "an extension acts on all layers: join with + instead of |"
        require(not mention.pattern, f"{everywhere} in '{expression.text:.80}'")
        cls = find(mention.name, pos_file, "extension")
        what = f"{mention.name} is no extension of a trained model: it must be trained with (--pos)"
        if not cls.can_extend:
            raise UserError(f"{what}. Extensions: {', '.join(extension_names(pos_file))}")
        piece = build(mention, replace(shape, trained=True), pos_file)
        piece.per_layer = cls.per_layer if mention.per_layer is None else mention.per_layer
        pieces.append(piece)
    return sorted(pieces, key=lambda piece: piece.goes_last)


def extended_frequencies(
    extend: str, head_dim: int, base: float = 10000.0, *, train_length: int, length: int = 0
) -> Table:
    """RoPE's (inv_freq, attention_factor) under an extension such as "yarn(factor=4)".

    The model was trained at `train_length` and is given `length` tokens, by default (0) as many.
    UserError for what is more than a map of frequencies.
    """
    maps = build_extensions(parse(extend), Shape(1, head_dim, head_dim, train_length), None)
    only_maps = all(posenc.overrides(piece, "map_frequencies") for piece in maps)
    require(only_maps, f"{extend:.80} is more than a map of frequencies")
    table = posenc.rope_frequencies(head_dim, base)
    return posenc.apply_maps(table, maps, base, length or train_length)
