"""Examine a position scheme before training: about a second, on a small model with the run's heads
and width.

A scheme must be causal, treat the texts of a batch independently, give finite numbers, train all
its parameters, and give the same numbers when run again, in blocks or token by token. A fault is
reported in one sentence with the file and the scheme.
"""

import difflib
import inspect
import traceback
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from attention import Options
from common.device import is_out_of_memory
from common.errors import UserError
from configurable import GPTConfig
from model import GPT, Cache
from posenc import Piece, Rotary, methods_of, scheme_name
from scheme import Catalogue, mentions_in, parse

NEAR = 1e-4  # how much logits may differ if they are computed in two ways
NOISE = 1e-7  # a gradient below is a rounding error; in all of the zoo the others are above 1e-4


class Fault(UserError):
    """A rule that a scheme breaks; the text completes a sentence that begins with its name."""


@contextmanager
def errors_named(pos_file, pos=""):
    """Turn an error from inside `pos_file` ("": none) into a UserError: one sentence with file,
    line and method. If `pos`, the scheme, is given, then errors from elsewhere too.
    """
    pos_file = Path(pos_file).resolve() if pos_file else None
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{f.name} in line {f.lineno}" for f in frames if f.filename == str(pos_file)]
        sentence = str(error).partition("\n")[0]
        is_named = pos_file and sentence.startswith(pos_file.name)
        # it says where already, or is not an error of the scheme
        if is_named or is_out_of_memory(error) or not (places or pos):
            raise
        if not isinstance(error, UserError):
            sentence = f"{type(error).__name__}: {sentence}"
        if places:
            sentence = f"{places[-1]} raises {sentence}"
        if isinstance(error, Fault):
            sentence = f"{pos} {sentence}"
        elif pos:
            sentence = f"{pos} fails: {sentence}"
        if pos_file:
            sentence = f"{pos_file.name}: {sentence}"
        raise UserError(sentence) from error


def examine(
    config: GPTConfig,
    pos_file: str | Path = "",
    folder: Path | None = None,
    documents: bool = False,
) -> list[str]:
    """Examine the scheme `config.pos`, extended by `config.extend`, for training at
    `config.block_size`. UserError, one sentence, for what is wrong.

    Returns warnings: of a branch that is in no layer, and of what fails in longer texts or on
    another device. `folder` is where files that options name are looked up. `documents` says that
    attention will stop at their ends, and positions restart there.
    """
    length = config.block_size
    warnings = []
    expression = parse(config.pos)
    catalogue = Catalogue(pos_file)
    for mention in expression.mentions:
        catalogue.find(mention.name, "pos")  # a wrong name
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with errors_named(pos_file, config.pos):
            absent = set(expression.mentions)  # from all layers
            n_layer = 0
            # as few layers as contain every piece, but at least 3 if the model has as many
            while n_layer < config.n_layer and (absent or n_layer < 3):
                absent.difference_update(mentions_in(expression.pattern, n_layer))
                n_layer += 1
            shallow = replace(config, n_layer=n_layer)
            model = small_model(shallow, pos_file, folder)
            again = small_model(shallow, pos_file, folder)  # as when a run is loaded
            for piece in model.pos.pieces.values():
                check_names(piece)
                if bool(piece.mix) != bool(piece.mixes):
                    raise Fault("must have both mix and mixes, or neither")
            check_short(model, again, config.vocab_size, min(48, length))
            check_long(model, length)
            if documents:
                check_documents(model, min(length, 2**19 // config.n_embd))
        advice = "if it defines L positions only, set self.limit = shape.first_length"
        with errors_named(pos_file, f"{config.pos} (in a text of 2 L tokens; {advice})"):
            check_last(model, 2 * length)
        for mention in expression.mentions:
            if mention in absent:
                warnings.append(
                    f"{mention.text} is in no layer: n_layer={config.n_layer} is too small for the "
                    "pattern"
                )
        try:
            with errors_named(pos_file, f"{config.pos} (longer, or on a GPU)"):
                check_long(model, 4 * length)
                warnings += untrained_numbers(model, length)
                # where tensors have no numbers, as on another device or in compiled code
                model.to("meta").eval()(torch.zeros(2, 8, dtype=torch.long, device="meta"))
        except UserError as error:
            warnings.append(str(error))
    return warnings


def check_names(piece):
    """Refuse a scheme that has attributes but none of the methods of the contract, or one with
    other arguments, turn without tables, or an attribute that nothing uses with a name close to one
    of the contract's.
    """
    cls = type(piece)
    for method in methods_of(piece):
        if method.of == "extensions":
            continue  # an attribute of this name may be another
        try:
            inspect.signature(getattr(piece, method.name)).bind(*method.arguments.split(", "))
        except TypeError:
            raise Fault(f"must have {method.name}(self, {method.arguments})") from None
    attributes = [name for name in vars(cls) if name[0] != "_"]
    acts = any(m.acts_on and m.of != "extensions" for m in methods_of(cls))
    if attributes and not acts:
        raise Fault(f"has {attributes[0]}, but none of the methods of posenc.Piece")
    if bool(cls.turn) != bool(cls.tables) or cls.turn_back and not cls.turn:
        raise Fault("must have both tables and turn, or neither; turn_back needs both")
    source = Path(inspect.getfile(cls)).read_text(encoding="utf-8")
    for name in dir(cls):
        if name[0] == "_" or hasattr(Rotary, name) or f".{name}" in source:
            continue
        near = difflib.get_close_matches(name, vars(Piece), 1, 0.65)
        if near:
            raise Fault(f"has {name}, which no piece has: did you mean {near[0]}?")


def untrained_numbers(model, length):
    """A warning of each bias by distance that has numbers which texts of 4 L read and texts of L do
    not, such as the table of t5(max_distance=512) at L = 128.
    """
    warnings = {}
    heads = torch.arange(model.config.n_head)[:, None, None]
    query = torch.tensor([[4 * length]])
    for piece in model.pos.pieces.values():
        if not (piece.bias and piece.by_distance):
            continue
        read = []  # the parameters' gradients, where near and where far keys are read
        for distances in (torch.arange(length), torch.arange(length, 4 * length)):
            piece.zero_grad()
            bias = piece.bias(heads, query, query - distances)
            if bias.requires_grad:
                bias.sum().backward()
            read.append([p.grad for p in piece.parameters() if p.grad is not None])
        count = sum(int(((near == 0) & (far != 0)).sum()) for near, far in zip(*read, strict=True))
        if count:
            name = scheme_name(piece)
            warnings[name] = (
                f"{count} numbers of {name} are read in texts of 4 L, but never trained: they "
                "belong to distances of L or more"
            )
    return list(warnings.values())


def small_model(config, pos_file, folder):
    """A model with the run's heads and width, with scores near 1 and hardly an MLP."""
    size = min(config.vocab_size, 256)
    model = GPT(replace(config, vocab_size=size, n_inner=8, dropout=0.0, extend=""), pos_file)
    model.pos.extend(config.extend, folder)
    model.wte.register_forward_pre_hook(lambda _, tokens: tokens[0] % size)
    for p in model.h.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=p.shape[1] ** -0.5)
    return model


def logits_of(model, tokens, train=False, cuts=()):
    """Logits (B, T, V) of one pass, as in a test or in training, or cut into parts with a cache."""
    model.train(train)
    if train:
        torch.manual_seed(0)
        model.pos.draw(0, 0, tokens.shape[1])
    cache = Cache(*tokens.shape) if cuts else None
    parts = tokens.tensor_split(tuple(cuts), 1)
    with torch.set_grad_enabled(train):
        logits = torch.cat([model.logits(x, cache) for x in parts], 1)
    if not logits.isfinite().all():
        raise Fault("must give finite numbers, and a key to every query")
    return logits


def check_same(a, b, rule, tolerance=1e-6):
    """Refuse a scheme if the logits of two passes differ."""
    if not torch.allclose(a, b, tolerance, tolerance):
        raise Fault(f"must {rule}")


def check_causal(model, tokens, train):
    """Check that changing the tokens after some place changes no logits up to it."""
    batch, length = tokens.shape
    ends = torch.linspace(length // 3, length - 2, batch)
    past = torch.arange(length) <= ends[:, None]
    other = torch.where(past, tokens, tokens.roll(1, 0))
    logits = [logits_of(model, texts, train)[past] for texts in (tokens, other)]
    check_same(*logits, "not read later tokens")


def check_short(model, again, vocab_size, length):
    """Make all checks in short texts; `again` is the model built a second time."""
    tokens = torch.randint(vocab_size, (4, length))
    # short texts that hold every token, at most 256 of them
    triples = (torch.arange(256)[:, None] + torch.tensor([3, 0, 1]))[:, :length] % vocab_size
    parameters = {name: p for name, p in model.pos.named_parameters() if p.requires_grad}
    # move parameters away from their initial values, because a zero may hide one
    moves = {name: 0.02 * torch.randn_like(p) for name, p in parameters.items()}
    for name, p in parameters.items():
        p.data.add_(moves[name])
    again.load_state_dict(model.state_dict())
    plain = logits_of(model, tokens)
    check_same(plain, logits_of(model, tokens), "give the same logits each time")
    rule = "make the same constants each time (seed a torch.Generator, or persistent=True)"
    check_same(plain, logits_of(again, tokens), rule)
    check_same(plain[:2], logits_of(model, tokens[:2]), "not read other texts of the batch", NEAR)
    targets = tokens.roll(-1, 1) % 2
    with torch.no_grad():
        losses = model.losses(tokens, targets)
    expected = nn.functional.cross_entropy(plain.mT, targets, reduction="none")
    check_same(expected, losses, "not read later tokens: they are the targets", NEAR)
    for train in (False, True):
        check_causal(model, tokens, train)
        check_causal(model, triples, train)
    model.eval()  # the positions that training drew are not for these texts
    for plan in model.pos.plan_pass(tokens, length, length, model.current_options()).plans:
        if plan.turns_values:
            x = torch.randn(4, model.config.n_head, length, model.config.head_width)
            back = plan.turn_back(plan.turn_as_keys(x, x))
            check_same(x, back, "undo turn(x, tables, True) by turn_back", NEAR)
    in_parts = logits_of(model, tokens, False, (1, *range(2, length, 5)))
    check_same(plain, in_parts, "give the same logits with a cache as in one pass", NEAR)
    for path in ("", "scored"):  # the fast one, and the reference: a query without keys is NaN
        model.options = Options(path, block_queries=7, shared_bytes=0)
        check_same(plain, logits_of(model, tokens), "give the same logits in blocks", NEAR)
    model.options = Options()
    for texts in (tokens, triples):
        if not without_gradient(model, texts, parameters, moves):
            return
    # a parameter that adds the same to all scores of a query, such as the last bias of fire, has no
    # gradient because the softmax cancels it; that is no fault: without the softmax it has one
    model.options = Options("scored", softmax=lambda scores, _: scores.sigmoid())
    names = without_gradient(model, tokens, parameters, moves)
    model.options = Options()
    # some parameters are used by a single token of the vocabulary only
    for texts in torch.arange(vocab_size)[:, None].split(1024):
        if not names:
            return
        names = without_gradient(model, texts, parameters, moves)
    if names:
        raise Fault(f"has parameters without a gradient: {', '.join(names)}")


def without_gradient(model, texts, parameters, moves):
    """The names of the parameters without a gradient from these texts or earlier ones; Fault if one
    is not finite. Then each parameter goes to the other side of its initial value.
    """
    logits_of(model, texts, True).log_softmax(-1)[..., 0].mean().backward()
    names = []
    for name, p in parameters.items():
        size = 0.0 if p.grad is None else p.grad.abs().max()
        if not size < torch.inf:
            raise Fault(f"must have finite gradients; that of {name} is not (sqrt of 0?)")
        if size <= NOISE:
            names.append(name)
        p.data.sub_(2 * moves[name])
        moves[name].neg_()
    return names


@torch.no_grad()
def check_documents(model, length):
    """Check that a document that begins in the middle of a text has the losses it has alone."""
    tokens = torch.randint(256, (1, length))
    targets = tokens % 2
    middle = length // 2
    targets[:, middle - 1] = -1  # ends the first
    model.train().pos.draw(0, 0, length)
    losses = model.losses(tokens, targets, documents=True)[:, middle:]
    alone = model.losses(tokens[:, middle:], targets[:, middle:])
    rule = "not read other documents, nor count places from the start of a row: set --documents=pad"
    check_same(alone, losses, rule, NEAR)


@torch.no_grad()
def check_last(model, length):
    """Compute the last of `length` tokens, or of as many as the scheme has, after a cache of zeros:
    quick, however long the text.
    """
    length = min(length, model.pos.limit or length)
    cache = Cache(1, length)
    token = torch.zeros(1, 1, dtype=torch.long)
    model.eval().logits(token, cache)  # makes the tensors
    for tensor in cache.tensors.values():
        tensor.zero_()
    cache.n = length - 1
    cache.tokens = token.expand(1, cache.n)
    model.logits(token, cache)


def check_long(model, length):
    """Check causality in texts of `length` tokens, or of as many as fit into a second."""
    if (model.pos.limit or length) >= length:
        length = min(length, 2**19 // model.config.n_embd)
        check_causal(model, torch.randint(256, (2, length)), False)
