"""Names of schemes: from a name to a class, from a mention to a piece."""
from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.machinery
import importlib.util
import inspect
import sys
import types
import typing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import posenc
from configurable import UserError, require
from posenc import Extension, Piece, Rotary, Scaled, Shape, answers, scheme_name
from positions.grammar import everywhere, mentions_of, name_of, options_in, parse, without_per_layer

ZOO = Path(__file__).resolve().parents[1] / "zoo"


def _pieces_of(namespace: dict[str, object], module: str) -> dict[str, type[Piece]]:
    classes = [c for c in namespace.values() if isinstance(c, type) and issubclass(c, Piece)]
    return {
        scheme_name(c): c
        for c in classes
        if c.__module__ == module and c not in (Piece, Rotary, Extension, Scaled)
    }


@lru_cache
def load_file(path: Path) -> dict[str, type[Piece]]:
    """The pieces that a Python file defines, by name; the file is run. Raises UserError if there are none."""
    require(path.is_file(), f"there is no file {path} to take position schemes from")
    name = f"pos_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(
        name, path, loader=importlib.machinery.SourceFileLoader(name, str(path))
    )
    module = sys.modules[name] = importlib.util.module_from_spec(
        spec
    )  # torch.compile looks a function's module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's own file: whatever it does
        raise UserError(
            f"{path} cannot be run: {type(error).__name__}: {error}; mend it, or see --debug"
        ) from error
    pieces = _pieces_of(vars(module), module.__name__)
    require(bool(pieces), f"{path} defines no subclass of posenc.Piece")
    return pieces


def names(pos_file: Path | None = None) -> list[str]:
    """Every scheme that `pos` may name."""
    return [name for name in _known(pos_file) if not issubclass(find(name, pos_file), Extension)]


def extension_names(pos_file: Path | None = None) -> list[str]:
    """Everything that `extend` may name."""
    return [name for name in _known(pos_file) if find(name, pos_file).extends]


def _known(pos_file: Path | None) -> list[str]:
    own = load_file(Path(pos_file)) if pos_file else {}
    return sorted(
        {*_pieces_of(vars(posenc), "posenc"), *(p.stem for p in ZOO.glob("[a-z]*.py")), *own}
    )


def find(name: str, pos_file: Path | None = None) -> type[Piece]:
    """The class of that name: a user's own, then this file's, then zoo/. A wrong name answers with the nearest right one."""
    own, built_in = load_file(Path(pos_file)) if pos_file else {}, _pieces_of(vars(posenc), "posenc")
    taken = sorted(n for n in own if n in built_in or (ZOO / f"{n}.py").exists())
    require(
        not taken,
        f"{pos_file} defines {', '.join(taken)}, a name that the project already has: rename the class",
    )
    if name in own or name in built_in:
        return own.get(name) or built_in[name]
    if name in _known(pos_file):
        return load_file(ZOO / f"{name}.py")[name]
    near = difflib.get_close_matches(name, _known(pos_file), 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "a scheme of your own needs --pos_file=FILE.py."
    raise UserError(
        f"there is no position scheme {name:.60}; {hint} Known: {', '.join(names(pos_file))}"
    )




def build(node: ast.expr, shape: Shape, pos_file: Path | None = None) -> Piece:
    """The piece of one mention. Wrong, missing or mistyped options are refused with the list of those it has."""
    name, options = name_of(node), options_in(node)
    cls = find(name, pos_file)
    known = options_of(cls)
    listed = ", ".join(str(p) for p in known.values()) or "none"
    for key, value in options.items():
        require(key in known, f"{name} has no option {key:.60}; its options: {listed}")
        require(
            _fits(value, known[key].annotation),
            f"{name}: {key}={value!s:.60} does not fit; its options: {listed}",
        )
    missing = [n for n, p in known.items() if p.default is p.empty and n not in options]
    require(
        not missing, f"{name} needs {', '.join(f'{m}=...' for m in missing)}; its options: {listed}"
    )
    options = {
        k: float(v) if type(v) is int and int not in _kinds(known[k].annotation) else v
        for k, v in options.items()
    }
    return cls(shape, **options) if cls.__init__ is not Piece.__init__ else cls()


def extensions(text: str, shape: Shape, pos_file: Path | None = None) -> list[Piece]:
    """The pieces of an `extend` expression, maps of frequencies that go over others last. Refuses what is no extension,
    a pattern of layers, and two claims on one place."""
    tree, pieces = parse(text), []
    require(
        everywhere(tree) == list(mentions_of(tree)),
        f"an extension acts on all layers: join with + instead of | in '{text:.80}'",
    )
    for node in mentions_of(tree):
        cls = find(name_of(node), pos_file)
        require(
            cls.extends,
            f"{name_of(node)} is no extension of a trained model: it must be trained with (--pos). "
            f"Extensions: {', '.join(extension_names(pos_file))}",
        )
        bare, per_layer = without_per_layer(node, cls.per_layer)
        pieces.append(build(bare, replace(shape, extends=True), pos_file))
        pieces[-1].per_layer = per_layer
    kinds = [type(p) for p in pieces]
    twice = next((scheme_name(k) for k in kinds if kinds.count(k) > 1), None)
    require(twice is None, f"{twice} stands twice in '{text:.80}': name it once")
    for question, place in (
        ("stretch", "frequencies"),
        ("ids", "positions"),
        ("regions", "distances"),
    ):
        claims = [
            scheme_name(type(p))
            for p in pieces
            if answers(p, question) and not getattr(p, "over_others", False)
        ]
        require(
            len(claims) < 2,
            f"{' and '.join(claims)} both change the {place} in '{text:.80}': keep one",
        )
    scaled = [scheme_name(type(p)) for p in pieces if isinstance(p, Scaled)]
    require(
        len(scaled) < 2,
        f"{' and '.join(scaled)} both take the text to be longer by a factor: keep one of '{text:.80}'",
    )
    return sorted(pieces, key=lambda p: getattr(p, "over_others", False))


def options_of(cls: type[Piece]) -> dict[str, inspect.Parameter]:
    """The options of a scheme with annotations and defaults: the keyword-only arguments of its __init__, if it has one."""
    own = (
        inspect.signature(cls.__init__, eval_str=True).parameters
        if cls.__init__ is not Piece.__init__
        else {}
    )
    return {name: p for name, p in own.items() if p.kind is p.KEYWORD_ONLY}


def _kinds(annotation: object) -> tuple[object, ...]:
    """The types that an annotation admits; without one, int and float and all others."""
    if annotation is inspect.Parameter.empty:
        return int, float, str, bool
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if union else (annotation,)


def _fits(value: object, annotation: object) -> bool:
    return type(value) in _kinds(annotation) or (type(value) is int and float in _kinds(annotation))


def extended_frequencies(extend: str, head_dim: int, base: float = 10000.0, *, train_length: int, length: int | None = None):
    maps = extensions(extend, Shape(1, head_dim, head_dim, train_length))
    require(all(answers(piece, "stretch") for piece in maps), f"{extend:.80} is more than a map of frequencies")
    table = posenc.rope_frequencies(head_dim, base)
    return posenc.stretched(table, maps, base, train_length if length is None else length)
