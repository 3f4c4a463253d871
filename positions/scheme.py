"""A position expression in a model: which piece acts in which layer, checked once, and what positions do in one forward."""

from __future__ import annotations

import ast
import copy
import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from configurable import require
from posenc import (
    Bias,
    Extension,
    Mask,
    Piece,
    Region,
    Rotary,
    Scaled,
    Shape,
    Text,
    Turn,
    answers,
    scheme_name,
    stretched,
    widened,
)
from positions.catalogue import build, extension_names, extensions, find
from positions.grammar import everywhere, mentions_of, name_of, parse, without_per_layer


@dataclass(frozen=True)
class Plan:
    """What positions do to attention in one forward, for the layers that share these pieces.

    query_ids (T,) or (B, T) and key_ids (S,) or (B, S) are position ids; the queries are the last T of the S tokens.
    """

    query_ids: Tensor
    key_ids: Tensor
    turns: tuple[Turn, Turn] | None = None
    temperature: Tensor | None = None  # (T, 1) or (H, T, 1)
    biases: tuple[Bias, ...] = ()
    masks: tuple[Mask, ...] = ()
    span: tuple[int, int] | None = (
        None  # keys outside the last span[0] and the first span[1] are never seen
    )
    scorer: Piece | None = None  # the piece that claims the whole score
    regions: tuple[
        tuple[Plan, Mask], ...
    ] = ()  # where g(query id, key id) holds, scores are those of another plan; its
    # turns then act here, on queries and on all keys, which are kept unturned


class Scheme(nn.Module):
    """A position expression built for a model of n_layer layers: which piece acts where, checked once, here."""

    def __init__(self, text: str, shape: Shape, n_layer: int, pos_file: Path | None = None) -> None:
        super().__init__()
        tree = parse(text)
        self.text, self.shape, self.pos_file = ast.unparse(tree), shape, pos_file
        self.extended, self.extensions = "", nn.ModuleList()
        mentions = list(mentions_of(tree))
        built: dict[
            tuple[int, int], str
        ] = {}  # (mention, layer if it is per_layer else 0) -> key in self.pieces
        self.pieces, own_of_layer = nn.ModuleDict(), set()
        self.layers: list[tuple[str, ...]] = []
        for n in range(n_layer):
            keys = []
            for node in _layer(tree, n):
                cls = find(name_of(node), pos_file)
                require(
                    not issubclass(cls, Extension),
                    f"{name_of(node)} extends a model that is trained already: "
                    f"write it as --extend={name_of(node)}",
                )
                bare, per_layer = without_per_layer(node, cls.per_layer)
                place = (mentions.index(node), n if per_layer else 0)
                if place not in built:
                    built[place] = f"{place[0]}_{name_of(node)}" + (
                        f"_layer{n}" if per_layer else ""
                    )
                    self.pieces[built[place]] = build(bare, shape, pos_file)
                    own_of_layer |= {built[place]} if per_layer else set()
                keys.append(built[place])
            self.layers.append(tuple(keys))
        self._share()
        self.unused = []
        for m, node in enumerate(mentions):
            if not any(m == k[0] for k in built):
                build(
                    without_per_layer(node, False)[0], shape, pos_file
                )  # a mistake in it is a mistake all the same
                self.unused.append(ast.unparse(node))
        self._check(
            [
                key
                for (m, _), key in built.items()
                if mentions[m] in everywhere(tree) and key not in own_of_layer
            ]
        )
        changes = self.ids_piece
        limits = [p.limit for p in self.pieces.values() if p.limit and p is not changes]
        self.id_limit = min(
            limits, default=None
        )  # how many position ids the pieces define; None: any
        self.limit = (
            changes.limit if changes else self.id_limit
        )  # the longest total length defined; None: any

    def _check(self, top: list[str]) -> None:
        """Refuse what clashes: two claims on one place, the same piece twice, an input piece inside a pattern."""
        for n, keys in enumerate(self.layers):
            kinds = [type(self.pieces[k]) for k in keys]
            twice = next((scheme_name(k) for k in kinds if kinds.count(k) > 1), None)
            require(
                twice is None,
                f"{twice} stands twice in layer {n} of '{self.text:.80}': name it once",
            )
            for question, place in (
                ("ids", "position ids"),
                ("embed", "token embedding"),
                ("turn", "rotation"),
                ("score", "whole score"),
            ):
                claims = [
                    scheme_name(type(self.pieces[k]))
                    for k in keys
                    if answers(self.pieces[k], question)
                ]
                require(
                    len(claims) < 2,
                    f"{' and '.join(claims)} both claim the {place} in '{self.text:.80}': keep one",
                )
            for kind in kinds:
                near = [scheme_name(k) for k in kinds if scheme_name(k) in kind.apart]
                require(
                    not near,
                    f"{scheme_name(kind)} cannot stand beside {' and '.join(near)} in "
                    f"'{self.text:.80}': it needs queries and keys of a head's width and size",
                )
        for key, piece in self.pieces.items():
            early = answers(piece, "ids") or answers(piece, "embed")
            name = scheme_name(type(piece))
            require(
                not early or key in top,
                f"{name} acts once, before the first layer, so it cannot stand inside a pattern "
                f"of layers or be per_layer: write 'SCHEME + (... | ...)' instead of '{self.text:.80}'",
            )
        mover = self.ids_piece
        for piece in self.pieces.values() if mover else ():
            name, other = scheme_name(type(piece)), piece is not mover
            require(
                not (piece.limit and mover.limit and piece.limit < mover.limit),
                f"'{self.text:.80}' gives positions up to "
                f"{mover.limit}, more than the {piece.limit} that {name} has: say e.g. learned(rows=...)",
            )
            require(
                not (other and piece.index_only),
                f"'{self.text:.80}': {name} needs the positions 0 ... N - 1 as they are",
            )
            require(
                not (other and mover.continuous and piece.limit and answers(piece, "embed")),
                f"'{self.text:.80}': {name} has a vector for each whole position, not for those in between",
            )

    def _share(self, own: tuple[Piece, ...] = ()) -> None:
        """Find the distinct sets of pieces, one plan each; a layer has a copy of its own of each of `own`."""
        shared = [p for p in self.extensions if p not in own]
        copies = [[copy.deepcopy(p) for p in own] for _ in self.layers]
        self.extensions = nn.ModuleList([*shared, *(p for of_layer in copies for p in of_layer)])
        self.sets = self.layers if own else list(dict.fromkeys(self.layers))
        self.set_of_layer = (
            list(range(len(self.layers)))
            if own
            else [self.sets.index(keys) for keys in self.layers]
        )
        self.extensions_of_set = [[*shared, *of_layer] for of_layer in copies[: len(self.sets)]]

    def extend(self, text: str, folder: Path | None = None) -> None:
        """Put an `extend` expression into force, in place of any other; empty or "none" for none. UserError where it does
        not fit. Files that its options name are looked for in `folder` first. One that is in force keeps what it learned."""
        text = "" if text == "none" else text
        added = extensions(text, replace(self.shape, folder=folder), self.pos_file) if text else []
        for piece in added:
            why = self.misfit(type(piece))
            fit = (
                [
                    n
                    for n in extension_names(self.pos_file)
                    if not self.misfit(find(n, self.pos_file))
                ]
                if why
                else []
            )
            require(
                not why,
                f"{scheme_name(type(piece))} does not extend {self.text:.80}: {why}. What fits: {', '.join(fit)}",
            )
        drawing = [
            scheme_name(type(p)) for p in [*self.pieces.values(), *added] if answers(p, "draw")
        ]
        require(
            len(drawing) < 2,
            f"{' and '.join(drawing)} both draw the positions of training: keep one",
        )
        unsure = [scheme_name(type(p)) for p in added if getattr(p, "by_length", False)]
        require(
            not (drawing and unsure),
            f"{' and '.join(unsure)} in '{text:.80}' would go by the length of the text, and "
            f"{' '.join(drawing)} draws positions for another: give a fixed factor, as in yarn(factor=4)",
        )
        maps = tuple(p for p in added if answers(p, "stretch"))
        rotary = [p for p in self.pieces.values() if isinstance(p, Rotary)]
        for piece in rotary:  # what a map cannot stretch is refused here, not in the first step
            stretched(piece.frequencies(self.shape.length), maps, piece.base, 2 * self.shape.length)
        files = {piece.file.resolve() for piece in added if getattr(piece, "file", None)}
        require(
            len({file.name for file in files}) == len(files),
            f"two files of '{text:.80}' have one name, and a run folder "
            "keeps a copy of each: rename one",
        )
        canonical = ast.unparse(parse(text)) if text else ""
        learned = self.extensions.state_dict() if canonical == self.extended else {}
        own = tuple(p for p in added if p.per_layer)
        for piece in own:
            name = scheme_name(type(piece))
            require(
                any(True for _ in piece.parameters())
                and not answers(piece, "stretch")
                and not answers(piece, "draw"),
                f"{name} learns nothing that a layer could have for itself: leave per_layer out of '{text:.80}'",
            )
            require(
                not (answers(piece, "ids") and self._first("embed")),
                f"{name} cannot be per_layer here: "
                f"{self._first('embed') and self._named('embed')} acts once, before the first layer",
            )
        self.extended, self.extensions = canonical, nn.ModuleList(added)
        self._share(own)
        self.extensions.load_state_dict(learned, strict=bool(learned))
        for piece in rotary:
            piece.stretches = maps

    def misfit(self, cls: type[Piece]) -> str:
        """Why an extension of that class does not fit this scheme, empty where it does."""
        pieces = list(self.pieces.values())
        if answers(cls, "stretch") and not any(isinstance(p, Rotary) for p in pieces):
            return "it changes the frequencies of rotary pieces, and there is none"
        if answers(cls, "regions") and any(answers(p, "score") for p in pieces):
            return (
                f"it rewrites distances, and {self._named('score')} makes the whole score by itself"
            )
        if answers(cls, "regions") and not any(
            answers(p, q) for p in pieces for q in ("turn", "bias")
        ):
            return "it rewrites distances, and no score depends on one"
        moving = answers(cls, "ids") or answers(cls, "draw")
        if moving and not any(self._reads(p) for p in pieces):
            return "it changes positions, and nothing reads them"
        if moving and any(
            (p.limit and answers(p, "embed")) or p.index_only
            for p in pieces
            if not answers(p, "ids")
        ):
            return "it changes positions, and there is a vector for each whole one"
        return cls.only_for(pieces) if issubclass(cls, Extension) else ""

    @staticmethod
    def _reads(piece: Piece) -> bool:
        return piece.reads_ids and any(
            answers(piece, question) for question in ("embed", "turn", "bias", "score")
        )

    def factor(self, total: int) -> float | None:
        """By how much the extension in force takes a text of `total` tokens to be longer, None where it has no such number;
        of several that of one that is built on it, such as yarn."""
        pieces = sorted(
            (p for p in self.extensions if isinstance(p, Extension)),
            key=lambda p: not isinstance(p, Scaled),
        )
        return next((factor for p in pieces if (factor := p.factor(total)) is not None), None)

    def _first(self, question: str) -> Piece | None:
        return next((p for p in self.pieces.values() if answers(p, question)), None)

    def _named(self, question: str) -> str:
        return scheme_name(type(self._first(question)))

    @staticmethod
    def _map(extensions: Iterable[Piece], ids: Tensor, total: int) -> Tensor:
        """Position ids as the extensions in force change them."""
        for piece in extensions:
            if answers(piece, "ids"):
                ids = piece.ids(widened(ids), total)
        return ids

    @property
    def ids_piece(self) -> Piece | None:
        """The piece that changes position ids, if there is one."""
        return self._first("ids")

    @property
    def continuous(self) -> bool:
        """Whether position ids are real numbers."""
        return self.ids_piece is not None and self.ids_piece.continuous

    def check_length(self, total: int) -> None:
        """Raise UserError if a text of `total` tokens has positions that the scheme does not define."""
        require(
            self.limit is None or total <= self.limit,
            f"{self.text} defines {self.limit} positions, a text of {total} tokens needs more",
        )

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Position ids of the tokens at `index` in a text of `total` tokens."""
        return self.ids_piece.ids(index, total) if self.ids_piece else index

    def check_ids(self, ids: Tensor) -> None:
        """Raise UserError for ids that are no positions of this scheme (waits for the device; not in compiled code)."""
        require(
            (self.continuous or not ids.is_floating_point()) and ids.dtype != torch.bool,
            f"position ids are integers, not {ids.dtype}",
        )
        reach = int(ids.max()) + 1 if self.id_limit and ids.numel() else 0
        require(
            not reach or reach <= self.id_limit,
            f"{self.text} defines {self.id_limit} positions, not one at {reach - 1}",
        )

    def draw(self, seed: int, step: int, length: int) -> Tensor | None:
        """The random position ids (length,) of a training step, the same for every process; None if they are not random."""
        drawing = next(
            (p for p in [*self.pieces.values(), *self.extensions] if answers(p, "draw")), None
        )
        if drawing is None:
            return None
        mixed = hashlib.sha256(f"{seed} {step}".encode()).digest()[
            :4
        ]  # torch's generator reads 32 bits of its seed
        return drawing.draw(length, torch.Generator().manual_seed(int.from_bytes(mixed, "little")))

    def embed(self, ids: Tensor, text: Text) -> Tensor | None:
        """What is added to the token embedding, or None."""
        piece = self._first("embed")
        return (
            piece.embed(self._map(self.extensions, ids, text.total) if self.extended else ids, text)
            if piece
            else None
        )

    def plans(
        self, index: Tensor, query_ids: Tensor, key_ids: Tensor, total: int, like: Tensor
    ) -> list[Plan]:
        """One Plan for each distinct set of pieces (`self.sets`); `index` (T,) are the queries' places in the text."""
        return [
            self._plan(
                [self.pieces[k] for k in keys], extensions, index, query_ids, key_ids, total, like
            )
            for keys, extensions in zip(self.sets, self.extensions_of_set, strict=True)
        ]

    def _plan(
        self,
        own: list[Piece],
        extensions: list[Piece],
        index: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        total: int,
        like: Tensor,
    ) -> Plan:
        pieces = [*own, *extensions]
        query_ids, key_ids = (self._map(extensions, ids, total) for ids in (query_ids, key_ids))
        temperatures = [
            p.temperature(index, like)[..., None] for p in pieces if answers(p, "temperature")
        ]
        spans = sorted(p.span for p in pieces if p.span)
        turning = next((p for p in own if answers(p, "turn")), None)
        plan = Plan(
            query_ids,
            key_ids,
            turning.turn(query_ids, total) if turning else None,
            math.prod(temperatures[1:], start=temperatures[0]) if temperatures else None,
            tuple(p.bias(like) for p in own if answers(p, "bias")),
            tuple(p.mask() for p in pieces if answers(p, "mask")),
            spans[0] if spans else None,
            next((p for p in own if answers(p, "score")), None),
        )
        rewriting = next((p for p in extensions if answers(p, "regions")), None)
        if rewriting is None or not (turning or plan.biases):
            return plan
        parts = [Region(lambda i: i, lambda j: j, lambda i, j: i >= i), *rewriting.regions(total)]
        return replace(
            plan,
            turns=None,
            regions=tuple((self._moved(plan, part, turning, total), part.where) for part in parts),
        )

    def _moved(self, plan: Plan, part: Region, turning: Piece | None, total: int) -> Plan:
        """The plan with the positions of a region; its turns act on queries and on all keys."""
        query_ids, key_ids = part.query(plan.query_ids), part.key(plan.key_ids)
        turns = (
            (turning.turn(query_ids, total)[0], turning.turn(key_ids, total)[1])
            if turning
            else None
        )
        return replace(plan, query_ids=query_ids, key_ids=key_ids, turns=turns)

    def describe(self) -> str:
        """The map of layers in a line or two, to be printed once."""

        def label(keys: tuple[str, ...]) -> str:
            return " + ".join(k.split("_", 1)[1] for k in keys)

        runs = [f"{n}: {label(keys)}" for n, keys in enumerate(self.layers)]
        text = (
            f"all {len(runs)} layers: {label(self.layers[0])}"
            if len(set(self.layers)) == 1
            else "layers " + ", ".join(runs)
        )
        mover = self.ids_piece
        if mover and not any(self._reads(p) for p in self.pieces.values()):
            text += f"; nothing here reads positions, so {scheme_name(type(mover))} changes nothing"
        text += f", extended by {self.extended}" if self.extended else ""
        return text + "".join(
            f"; {name} is in no layer (the pattern is cut at {len(runs)})" for name in self.unused
        )


def _layer(node: ast.expr, n: int) -> list[ast.expr]:
    """The mentions that act in layer n: `|` takes branch n mod k, however deep the chain of `|` is nested."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _layer(node.left, n) + _layer(node.right, n)
    branches = _branches(node)
    return _layer(branches[n % len(branches)], n) if len(branches) > 1 else [node]


def _branches(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _branches(node.left) + _branches(node.right)
    return [node]
