"""The catalogue of schemes: which names there are, the class of a name, the piece of a mention.

A name is looked up in a user's own --pos_file, then in posenc.py, then in zoo/. To add a scheme,
put a file into zoo/ whose class has the name of the file, in CamelCase.
"""

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
from posenc import Extension, Piece, Rotary, Scaled, Shape, Table, scheme_name
from positions.grammar import Expression, Mention, parse

ZOO = Path(__file__).resolve().parents[1] / "zoo"
ALIASES = {  # names that stand for another expression; their options are those of the target
    "dynamic_yarn": "yarn",  # Peng et al. 2023, section 3.3: factor=auto follows the text's length
    "ntk_by_parts": "yarn(ramp=turns, mscale=0)",  # bloc97 2023: yarn before its temperature
}
Option = inspect.Parameter


def read(text: str) -> Expression:
    """An expression with its aliases replaced; UserError for what is none."""
    return parse(text, ALIASES)


# ---- names


@lru_cache
def load_file(path: Path) -> dict[str, type[Piece]]:
    """The pieces that a Python file defines, by name. The file is run. UserError if it has none."""
    require(path.is_file(), f"there is no file {path} to take position schemes from")
    name = f"pos_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
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
    return {scheme_name(c): c for c in own if c not in (Piece, Rotary, Extension, Scaled)}


def scheme_names(pos_file: Path | None = None) -> list[str]:
    """Every scheme that `pos` may name."""
    known = _known(pos_file)
    return [name for name in known if not issubclass(find(name, pos_file), Extension)]


def extension_names(pos_file: Path | None = None) -> list[str]:
    """Everything that `extend` may name."""
    return [name for name in _known(pos_file) if find(name, pos_file).can_extend]


def _known(pos_file: Path | None) -> list[str]:
    own = load_file(Path(pos_file)) if pos_file else {}
    return sorted({*_pieces_of(posenc), *(path.stem for path in ZOO.glob("[a-z]*.py")), *own})


def find(name: str, pos_file: Path | None = None) -> type[Piece]:
    """The class of that name. A wrong name is refused (UserError) with the nearest right one."""
    own, textbook = load_file(Path(pos_file)) if pos_file else {}, _pieces_of(posenc)
    taken = [n for n in sorted(own) if n in {*textbook, *ALIASES} or (ZOO / f"{n}.py").exists()]
    clash = f"{pos_file} defines {', '.join(taken)}, a name that the project already has"
    require(not taken, f"{clash}: rename the class")
    if name in own or name in textbook:
        return own.get(name) or textbook[name]
    if name in _known(pos_file):
        pieces = load_file(ZOO / f"{name}.py")
        defined = f"zoo/{name}.py defines {', '.join(pieces)}"
        require(name in pieces, f"{defined}, but no class for {name}")
        return pieces[name]
    near = difflib.get_close_matches(name, [*_known(pos_file), *ALIASES], 1, 0.4)
    own_file = "a scheme of your own needs --pos_file=FILE.py."
    hint = f"did you mean {near[0]}?" if near else own_file
    known = ", ".join(scheme_names(pos_file))
    raise UserError(f"there is no position scheme {name:.60}; {hint} Known: {known}")


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
    required = [key for key, option in known.items() if option.default is option.empty]
    missing = ", ".join(f"{key}=..." for key in required if key not in options)
    require(not missing, f"{name} needs {missing}; its options: {listed}")
    return cls(shape, **options) if cls.__init__ is not Piece.__init__ else cls()


def options_of(cls: type[Piece]) -> dict[str, Option]:
    """A scheme's options: the keyword-only arguments of its __init__, annotations and defaults."""
    arguments = inspect.signature(cls.__init__, eval_str=True).parameters
    return {
        name: option for name, option in arguments.items() if option.kind is option.KEYWORD_ONLY
    }


def _types_of(option: Option) -> tuple[object, ...]:
    """The types that an option's annotation admits; any where there is no annotation."""
    annotation = option.annotation
    if annotation is option.empty:
        return int, float, str, bool
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    return typing.get_args(annotation) if union else (annotation,)


def build_extensions(
    expression: Expression, shape: Shape, pos_file: Path | None = None
) -> list[Piece]:
    """The pieces of an `extend` expression, a frequency map that goes last at the end.

    UserError for what is no extension.
    """
    pieces = []
    for mention in expression.mentions:
        everywhere = "an extension acts on all layers: join with + instead of |"
        require(not mention.pattern, f"{everywhere} in '{expression.text:.80}'")
        cls = find(mention.name, pos_file)
        known = ", ".join(extension_names(pos_file)) if not cls.can_extend else ""
        what = f"{mention.name} is no extension of a trained model: it must be trained with (--pos)"
        require(cls.can_extend, f"{what}. Extensions: {known}")
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

    The model was trained at `train_length` and is given `length` tokens, by default as many.
    UserError for what is more than a map of frequencies.
    """
    maps = build_extensions(read(extend), Shape(1, head_dim, head_dim, train_length))
    only_maps = all(posenc.overrides(piece, "map_frequencies") for piece in maps)
    require(only_maps, f"{extend:.80} is more than a map of frequencies")
    table = posenc.rope_frequencies(head_dim, base)
    return posenc.apply_maps(table, maps, base, train_length if length is None else length)
