"""A position expression in a model: which piece acts in which layer, and the plan for attention."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import posenc
from configurable import mixed_seed, require
from posenc import Extension, Mask, Piece, Region, Rotary, Shape, Turn, overrides, scheme_name
from positions import rules
from positions.catalogue import build, build_extensions, extension_names, find
from positions.grammar import Expression, parse

# ---- the plan for attention


@dataclass(frozen=True)
class Plan:
    """What positions do to attention in one forward, for the layers that share these pieces.

    query_ids (T,) or (B, T) and key_ids (S,) or (B, S) are position ids. The queries are the last T
    of the S tokens. Keys that are neither among the last span[0] nor among the first span[1] are
    never seen. Where mask(query id, key id) of a region holds, scores are those of the region's
    plan; the turns of regions act on queries and on all keys, which are then kept unturned.
    """

    query_ids: Tensor
    key_ids: Tensor
    turns: tuple[Turn, Turn] | None = None
    by_head: bool = False  # whether the keys of each head are turned in another way
    temperature: Tensor | None = None  # (T, 1) or (H, T, 1)
    biases: tuple[posenc.Bias, ...] = ()
    masks: tuple[Mask, ...] = ()
    span: tuple[int, int] | None = None
    scorer: Piece | None = None  # the piece that claims the whole score, or reads features
    keeper: Piece | None = None  # the extension that says how the cache keeps keys and values
    pieces: tuple[Piece, ...] = ()  # all that act, where ids are indexes and kernels take the heads
    regions: tuple[tuple["Plan", Mask], ...] = ()

    def features(self, x: Tensor) -> list[Tensor]:
        """What a scorer keeps of a layer's input x (B, T, C): [(B, 1, T, M)], or nothing."""
        keeps = self.scorer is not None and overrides(self.scorer, "features")
        return [self.scorer.features(x)[:, None]] if keeps else []


# ---- the scheme


class Scheme(nn.Module):
    """The pieces of a position expression, built and checked for a model of n_layer layers.

    `layers` has the keys of `pieces` that act in each layer; `extensions` are the pieces that an
    `extend` expression activated, and `extension` is its canonical text. Layers with the same
    pieces share one plan: `sets` are the distinct sets of keys, `set_of_layer` says which is whose.
    UserError for an expression that does not fit the model.
    """

    def __init__(self, text: str, shape: Shape, n_layer: int, pos_file: Path | None = None) -> None:
        super().__init__()
        expression = parse(text)
        self.text, self.shape, self.pos_file = expression.text, shape, pos_file
        self.pieces, self.layers = nn.ModuleDict(), []
        for layer in range(n_layer):
            self.layers.append(self._build_layer(expression, layer))
            here = [self.pieces[key] for key in self.layers[layer]]
            rules.check_pairs(rules.in_one_layer, here, self.text)
        rules.check_pairs(rules.in_one_scheme, list(self.pieces.values()), self.text)
        self.unused = [m for m in expression.mentions if not any(map(m.acts_in, range(n_layer)))]
        for mention in self.unused:
            build(mention, shape, pos_file)  # a mistake in it is a mistake all the same
        mover = self.ids_piece
        limits = [p.limit for p in self.pieces.values() if p.limit and p is not mover]
        self.id_limit = min(limits, default=None)  # how many position ids there are; None: any
        self.limit = mover.limit if mover else self.id_limit  # the longest text defined; None: any
        self.extension, self.extensions = "", nn.ModuleList()
        self._share([])

    def _build_layer(self, expression: Expression, layer: int) -> tuple[str, ...]:
        """Build the pieces of a layer that are not built yet; the keys of all its pieces."""
        keys = []
        for number, mention in enumerate(expression.mentions):
            if not mention.acts_in(layer):
                continue
            name, cls = mention.name, find(mention.name, self.pos_file)
            trained = f"{name} extends a model that is trained already: write it as --extend={name}"
            require(not issubclass(cls, Extension), trained)
            own = cls.per_layer if mention.per_layer is None else mention.per_layer
            early = overrides(cls, "ids") or overrides(cls, "embed")
            place = "it cannot stand inside a pattern of layers or be per_layer"
            sentence = f"{name} acts once, before the first layer, so {place}"
            advice = f"write 'SCHEME + (... | ...)' instead of '{self.text:.80}'"
            require(not early or not (mention.pattern or own), f"{sentence}: {advice}")
            key = f"{number}_{name}_layer{layer}" if own else f"{number}_{name}"
            if key not in self.pieces:
                self.pieces[key] = build(mention, self.shape, self.pos_file)
            keys.append(key)
        return tuple(keys)

    def _share(self, extensions: list[Piece]) -> None:
        """Activate extensions: a layer has copies of its own of those that are per_layer."""
        own = [piece for piece in extensions if piece.per_layer]
        shared = [piece for piece in extensions if not piece.per_layer]
        copies = [[copy.deepcopy(piece) for piece in own] for _ in self.layers]
        self.extensions = nn.ModuleList([*shared, *(p for of_layer in copies for p in of_layer)])
        self.maps = tuple(p for p in extensions if overrides(p, "map_frequencies"))
        self.sets, self.set_of_layer = self.layers, list(range(len(self.layers)))
        if not own:
            self.sets = list(dict.fromkeys(self.layers))
            self.set_of_layer = [self.sets.index(keys) for keys in self.layers]
        self.extensions_of_set = [[*shared, *copies[n]] for n in range(len(self.sets))]

    def extend(self, text: str, folder: Path | None = None) -> None:
        """Activate an `extend` expression, in place of any other; "" or "none" for none.

        UserError where it does not fit. Files that its options name are looked for in `folder`
        first. The expression that is active keeps what it learned.
        """
        canonical, added = "", []
        if text not in ("", "none"):
            expression = parse(text)
            shape = replace(self.shape, folder=folder)
            canonical, added = expression.text, build_extensions(expression, shape, self.pos_file)
        rules.check_pairs(rules.in_one_extension, added, canonical)
        for piece in added:
            self._check_fit(piece, canonical)
        maps = [piece for piece in added if overrides(piece, "map_frequencies")]
        for piece in self.rotary:  # what a map cannot do is refused here, not in the first step
            length = self.shape.length
            posenc.apply_maps(piece.frequencies(length), maps, piece.base, 2 * length)
        learned = self.extensions.state_dict() if canonical == self.extension else {}
        self.extension = canonical
        self._share(added)
        self.extensions.load_state_dict(learned, strict=bool(learned))

    def _check_fit(self, piece: Piece, text: str) -> None:
        """Raise UserError where a piece of the extension `text` does not fit this scheme."""
        name, own = scheme_name(piece), self.pieces.values()
        why = rules.misfit(piece, own)
        if why:
            known = extension_names(self.pos_file)
            fit = [n for n in known if not rules.misfit(find(n, self.pos_file), own)]
            advice = "" if name in fit else f". What fits: {', '.join(fit)}"
            require(False, f"{name} does not extend {self.text:.80}: {why}{advice}")
        if piece.per_layer:
            fixed = overrides(piece, "map_frequencies") or overrides(piece, "draw")
            learns = any(True for _ in piece.parameters()) and not fixed
            nothing = f"{name} learns nothing that a layer could have for itself"
            require(learns, f"{nothing}: leave per_layer out of '{text:.80}'")

    def factor(self, total: int) -> float | None:
        """How many times longer the active extension takes a text of `total` tokens to be.

        None where it has no such number. Of several, one that is built on a factor counts first.
        """
        known = [piece for piece in self.extensions if isinstance(piece, Extension)]
        scaled = [piece for piece in known if isinstance(piece, posenc.Scaled)]
        factors = [piece.factor(total) for piece in [*scaled, *known]]
        return next((factor for factor in factors if factor is not None), None)

    @property
    def rotary(self) -> list[Rotary]:
        """The rotary pieces."""
        return [piece for piece in self.pieces.values() if isinstance(piece, Rotary)]

    def piece_with(self, method: str) -> Piece | None:
        """The first piece that overrides a method."""
        return next((p for p in self.pieces.values() if overrides(p, method)), None)

    @property
    def ids_piece(self) -> Piece | None:
        """The piece that changes position ids, if there is one."""
        return self.piece_with("ids")

    def check_length(self, total: int) -> None:
        """Raise UserError if a text of `total` tokens has positions that the scheme lacks."""
        more, limit = f"a text of {total} tokens needs more", self.limit
        require(limit is None or total <= limit, f"{self.text} defines {limit} positions, {more}")

    def check_ids(self, ids: Tensor) -> None:
        """Raise UserError for ids that are no positions of this scheme.

        It waits for the device, and cannot stand in compiled code.
        """
        real = self.ids_piece is not None and self.ids_piece.continuous
        good = real if ids.is_floating_point() else ids.dtype != torch.bool
        require(good, f"position ids are integers, not {ids.dtype}")
        if self.id_limit and ids.numel():
            last = int(ids.max())
            defined = f"{self.text} defines {self.id_limit} positions"
            require(last < self.id_limit, f"{defined}, not one at {last}")

    def ids(self, index: Tensor, total: int) -> Tensor:
        """Position ids of the tokens at `index` in a text of `total` tokens."""
        return self.ids_piece.ids(index, total) if self.ids_piece else index

    def draw(self, seed: int, step: int, length: int) -> Tensor | None:
        """The random position ids (length,) of a training step; None if they are not random.

        They follow from seed and step, so that all processes have the same.
        """
        pieces = [*self.pieces.values(), *self.extensions]
        drawing = next((piece for piece in pieces if overrides(piece, "draw")), None)
        if drawing is None:
            return None
        return drawing.draw(length, torch.Generator().manual_seed(mixed_seed(seed, step)))

    def embed(self, ids: Tensor, text: posenc.Text) -> Tensor | None:
        """What is added to the token embedding, or None."""
        piece = self.piece_with("embed")
        if piece is None:
            return None
        return piece.embed(extended_ids(self.extensions, ids, text.total), text)

    def plans(
        self, index: Tensor, query_ids: Tensor, key_ids: Tensor, total: int, like: Tensor
    ) -> list[Plan]:
        """One plan for each of `sets`; `index` (T,) are the places of the queries in the text."""
        plans = []
        for number, extensions in enumerate(self.extensions_of_set):
            ids = [extended_ids(extensions, ids, total) for ids in (query_ids, key_ids)]
            plans.append(self._plan(number, index, Plan(*ids), total, like))
        return plans

    def _plan(self, number: int, index: Tensor, plan: Plan, total: int, like: Tensor) -> Plan:
        """The plan of that number of `sets`: of its pieces and the active extensions there."""
        own = [self.pieces[key] for key in self.sets[number]]
        extensions = self.extensions_of_set[number]
        pieces = [*own, *extensions]
        turning = next((p for p in own if overrides(p, "turn")), None)
        cooling = [p for p in pieces if overrides(p, "temperature")]
        temperatures = [p.temperature(index, like)[..., None] for p in cooling]
        spans = sorted(p.span for p in pieces if p.span)
        fits = self.shape.head_dim >= 16 or not index.is_cuda  # FlexAttention
        plan = replace(
            plan,
            temperature=math.prod(temperatures[1:], start=temperatures[0]) if cooling else None,
            biases=tuple(p.bias(like) for p in own if overrides(p, "bias")),
            masks=tuple(p.mask() for p in pieces if overrides(p, "mask")),
            span=spans[0] if spans else None,
            scorer=next((p for p in own if rules.claims_score(p)), None),
            by_head=any(p.by_head for p in own),
            keeper=next((p for p in extensions if overrides(p, "pack")), None),
            pieces=tuple(pieces if plan.key_ids is index and fits else ()),
        )
        rewriting = next((p for p in extensions if overrides(p, "regions")), None)
        if rewriting and (turning or plan.biases):
            everywhere = Region(lambda i: i, lambda j: j, lambda i, j: i >= i)
            regions = [everywhere, *rewriting.regions(total)]
            parts = [(self._moved(plan, part, turning, total), part.where) for part in regions]
            return replace(plan, regions=tuple(parts))
        turns = turning.turn(plan.query_ids, total, self.maps) if turning else None
        return replace(plan, turns=turns)

    def _moved(self, plan: Plan, part: Region, turning: Piece | None, total: int) -> Plan:
        """The plan with the positions of a region; its turns act on queries and on all keys."""
        query_ids, key_ids = part.query(plan.query_ids), part.key(plan.key_ids)
        turns = None
        if turning:
            turn_queries, _ = turning.turn(query_ids, total, self.maps)
            _, turn_keys = turning.turn(key_ids, total, self.maps)
            turns = turn_queries, turn_keys
        return replace(plan, query_ids=query_ids, key_ids=key_ids, turns=turns)

    def describe(self) -> str:
        """Which pieces act in which layers, in a line or two."""
        labels = [" + ".join(key.split("_", 1)[1] for key in keys) for keys in self.layers]
        text = "layers " + ", ".join(f"{n}: {label}" for n, label in enumerate(labels))
        if len(set(labels)) == 1:
            text = f"all {len(labels)} layers: {labels[0]}"
        if self.ids_piece and not any(map(rules.reads_positions, self.pieces.values())):
            mover = scheme_name(self.ids_piece)
            text += f"; nothing here reads positions, so {mover} changes nothing"
        if self.extension:
            text += f", extended by {self.extension}"
        for mention in self.unused:
            text += f"; {mention.text} is in no layer (the pattern is cut at {len(labels)})"
        return text


def extended_ids(extensions: Iterable[Piece], ids: Tensor, total: int) -> Tensor:
    """Position ids as the active extensions change them."""
    for piece in extensions:
        if overrides(piece, "ids"):
            ids = piece.ids(posenc.widened(ids), total)
    return ids
