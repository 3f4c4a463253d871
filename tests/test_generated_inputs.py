"""Thousands of generated inputs for the parsers: each is read or refused with one sentence, at once, and none runs anything.

Half of them are what the grammars give, then broken in a few places, half are noise. `python -m pytest -s` on this file
prints how many were tried and how many passed.
"""

import builtins
import dataclasses
import encodings.utf_8_sig  # noqa: F401   imported by Python itself for the first file and for the first name that is
import functools
import inspect
import sys
import time
import unicodedata  # noqa: F401           not ASCII: here, before anything is watched
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from configurable import (
    AblateSettings,
    EvaluateSettings,
    ExplainSettings,
    ExtendSettings,
    ReportSettings,
    SampleSettings,
    TrainSettings,
    UserError,
    configure,
)
from model import GPT, GPTConfig
from posenc import Shape
from positions.catalogue import scheme_names
from positions.scheme import Scheme

COMMANDS = (
    TrainSettings,
    EvaluateSettings,
    ReportSettings,
    SampleSettings,
    AblateSettings,
    ExtendSettings,
    ExplainSettings,
)
NAMES = (
    scheme_names()
)  # finds the files of the zoo, which takes long if it is done for every example
EXAMPLES = {"config files": 750, "command lines": 750, "position expressions": 1000}
LEAST = {"config files": 600, "command lines": 650, "position expressions": 750}  # different ones
LONGEST = 600  # characters of a sentence
SECONDS = 2.0  # of processor time for one input
TINY = Shape(n_head=2, head_dim=4, width=8, length=8)


# ---- what runs when something is executed

RUNS = {
    "exec",
    "import",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "socket.connect",
    "ctypes.dlopen",
    "marshal.loads",
    "pickle.find_class",
}
watched: list[str] | None = None  # while inputs are parsed: what happened that should not


def hook(event: str, arguments: tuple) -> None:
    """Note what executes code, starts a program or changes a file."""
    if watched is None:
        return
    writes = event == "open" and any(letter in str(arguments[1]) for letter in "wax+")
    annotation = (
        event == "exec" and sys._getframe(1).f_code.co_filename == inspect.__file__
    )  # of an option, in the project's source
    if (event in RUNS or writes) and not annotation:
        watched.append(f"{event} {arguments!r:.100}")


@pytest.fixture(scope="module", autouse=True)
def alarm() -> None:
    """The hook cannot be taken out again; it does nothing while nothing is watched."""
    sys.addaudithook(hook)


@contextmanager
def nothing_runs() -> Iterator[None]:
    """Fail if code is executed, or if it takes long."""
    global watched
    watched, began = [], time.process_time()
    try:
        with warnings.catch_warnings():  # Python's parser remarks on odd literals
            warnings.simplefilter("ignore")
            yield
    finally:
        happened, watched = watched, None
        seconds = time.process_time() - began
        assert not happened, happened
        assert seconds < SECONDS, f"{seconds:.1f} s"


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`canary()` and `import canary` work everywhere and are noticed, and so is a file `made`."""
    sung: list[object] = []
    monkeypatch.setattr(builtins, "canary", lambda *x, **y: sung.append(x), raising=False)
    (tmp_path / "canary.py").write_text("canary('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    assert not sung and not (tmp_path / "made").exists()


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter]:
    """How many inputs were tried, passed, accepted and refused."""
    counts: Counter = Counter()
    yield counts
    for kind in (k for k in EXAMPLES if counts[k, "tried"]):
        print(
            f"\n{kind}: {counts[kind, 'passed']} of {counts[kind, 'tried']} passed "
            f"({counts[kind, 'accepted']} accepted, {counts[kind, 'refused']} refused)",
            end="",
        )
    print(
        f"\ngenerated inputs: {sum(counts[k, 'passed'] for k in EXAMPLES)} of {sum(counts[k, 'tried'] for k in EXAMPLES)} passed"
    )


def throw(
    kind: str,
    known: list,
    strategy: st.SearchStrategy,
    parse: Callable[..., object],
    tally: Counter,
    record: Callable[..., None],
) -> None:
    """Give the parser what is known and what the strategy makes; count different inputs and see that both answers were given."""
    different: set[str] = set()

    def one(value: object) -> None:
        new = repr(value) not in different
        different.add(repr(value))
        tally[kind, "tried"] += new
        try:
            parse(value)
            answer = "accepted"
        except UserError as error:
            said, answer = str(error), "refused"
            assert 10 < len(said) <= LONGEST, said
            assert said.isprintable(), said  # one line, nothing that moves a terminal's cursor
        tally[kind, "passed"] += new
        tally[kind, answer] += new

    for value in known:
        one(value)
    generated = hypothesis_settings(
        max_examples=EXAMPLES[kind],
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # what hangs would hang again and again while it is made smaller
        suppress_health_check=list(HealthCheck),
    )
    generated(given(strategy)(one))()
    assert tally[kind, "passed"] == tally[kind, "tried"] >= LEAST[kind]
    assert tally[kind, "accepted"] >= 100 and tally[kind, "refused"] >= 100
    record(
        f"generated {kind} read or refused with a sentence",
        tally[kind, "passed"],
        tried=tally[kind, "tried"],
    )


def test_the_inputs_are_at_least_two_thousand() -> None:
    assert sum(LEAST.values()) >= 2000


# ---- what is thrown

TRAPS = [
    "canary()",
    "canary",
    "__import__('canary')",
    "open('made', 'w')",
    "exec('canary()')",
    "eval('canary()')",
    "[canary() for _ in (1,)]",
    "(lambda: canary())()",
    "f'{canary()}'",
    "(x := canary())",
    "canary.__class__",
    "().__class__.__base__.__subclasses__()",
    "9**9**9**9",
    "10**10**10",
    "1 << 10**9",
    "'a' * 10**12",
    "[0] * 10**12",
    "*canary()",
    "**canary()",
    "1 if canary() else 2",
]
SPLINTERS = [
    *"()[]{}+-*/|=,.:;'\"\\#@~%&!?$`_0 \t\n\r\f\0",
    "**",
    "//",
    "->",
    ":=",
    "\ufeff",
    "\u202e",
    "\u2028",
    "é",
    "ſ",
    "ｏ",
    "\ud800",
    "1e999",
    "nan",
    "inf",
    "0x",
    "1_0",
    "3j",
    "...",
    "None",
    "True",
    "lambda:",
    "await ",
    "yield ",
    "not ",
    "import canary",
    *TRAPS,
]
FIELDS = sorted({field.name for cls in COMMANDS for field in dataclasses.fields(cls)})


@st.composite
def broken(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A text, mostly with up to three places cut out, doubled or pierced by a splinter."""
    text = draw(texts)
    for _ in range(draw(st.integers(0, 3))):
        a = draw(st.integers(0, len(text)))
        b = min(len(text), a + draw(st.integers(0, 4)))
        middle = draw(st.sampled_from(["", text[a:b] * 2, *SPLINTERS]))
        text = text[:a] + middle + text[b:]
    return text


NOISE = st.one_of(
    st.text(max_size=60),
    st.text("ropealibt5+|()=,.1e-'\" \n#:[]{}*@~\\\0", max_size=80),
    st.builds(
        lambda bit, n: bit * n,
        st.sampled_from(SPLINTERS + ["rope+", "a.", "x|", "9"]),
        st.integers(1, 300),
    ),
)
NUMBER = st.one_of(
    st.integers(-3, 300).map(str),
    st.sampled_from(
        [
            "1e-3",
            "3e-4",
            "0.9",
            "1e4",
            "1e308",
            "5e-324",
            "-0.0",
            "2**10",
            "2**53",
            "2**-1",
            "1/3",
            "7//2",
            "10%4",
            str(10**18),
            "9" * 400,
        ]
    ),
)
TEXT = st.sampled_from(
    [
        "'rope'",
        "'rope + alibi'",
        '"cpu"',
        "'auto'",
        "'float32'",
        "''",
        "'1/2'",
        "'a,b'",
        "'out/x'",
        "'\\0'",
        "'''a\nb'''",
    ]
)
LITERAL = st.recursive(
    st.one_of(NUMBER, TEXT, st.sampled_from(["True", "False", "None", "()", "[]", *TRAPS])),
    lambda inner: st.one_of(
        st.builds("({}, {})".format, inner, inner),
        st.builds("[{}]".format, inner),
        st.builds("-{}".format, inner),
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "|", "<", "and"]),
            inner,
        ),
    ),
    max_leaves=5,
)


def good_values(cls: type) -> list[tuple[str, str]]:
    """Settings of a command with values that are good by themselves, as a command line has them."""
    odd = {
        "pos": "rope + alibi",
        "protocols": "windowed",
        "eval_lengths": "64,256",
        "seeds": "4,5",
        "only": "1/3",
        "dtype": "float32",
        "max_iters": "800",
        "lr_decay_iters": "800",
    }
    fixed = {"pos", "seed", "out_dir"} if cls is AblateSettings else set()
    values = {bool: "true", int: "8", float: "0.002", str: "some"}
    found = []
    for field in dataclasses.fields(cls):
        kind = next(k for k in values if k in (field.type, *getattr(field.type, "__args__", ())))
        found += (
            [(field.name, odd.get(field.name, values[kind]))] if field.name not in fixed else []
        )
    return found


def in_a_file(name: str, text: str) -> str:
    """The line of a config file for a value that a command line could have."""
    many = name in ("eval_lengths", "seeds")
    quoted = not many and text not in ("true", "8", "800", "0.002")
    return f"{name} = {f'[{text}]' if many else repr(text) if quoted else text.capitalize()}"


def files() -> st.SearchStrategy[tuple[type, bytes]]:
    """(command, the bytes of a config file)."""

    def of(cls: type) -> st.SearchStrategy[tuple[type, bytes]]:
        good = st.sampled_from(
            [in_a_file(*pair) for pair in good_values(cls) if pair[0] != "protocols"]
            + ["", "# a comment"]
        )
        line = st.one_of(
            good,
            st.builds(
                "{} = {}".format,
                st.sampled_from([*FIELDS, "n_emdb", "__class__", "check"]),
                LITERAL,
            ),
            st.sampled_from(["import canary", "canary()", "if canary(): pass"]),
        )
        well, badly = (
            st.lists(lines, min_size=1, max_size=5, unique=True).map("\n".join)
            for lines in (good, line)
        )
        texts = st.one_of(well, well, badly, broken(well), NOISE).map(
            lambda text: text.encode("utf-8", errors="surrogatepass")
        )
        return st.tuples(
            st.just(cls), st.one_of(texts, texts, texts, texts, st.binary(max_size=60))
        )

    return st.one_of(*map(of, COMMANDS))  # made once: flatmap would make it for every example


def command_lines() -> st.SearchStrategy[tuple[type, list[str]]]:
    """(command, its words)."""

    def of(cls: type) -> st.SearchStrategy[tuple[type, list[str]]]:
        pair = st.sampled_from([(f"--{name}", text) for name, text in good_values(cls)])
        good = st.one_of(
            pair.map("=".join), st.sampled_from(["rope", "rope + alibi", "out/run", "--debug"])
        )
        any_pair = st.builds(
            "--{}={}".format, st.sampled_from([*FIELDS, "n_emdb", "__init__"]), LITERAL
        )
        word = st.one_of(
            good,
            any_pair,
            broken(st.one_of(good, any_pair)),
            NOISE,
            st.sampled_from(["--", "-", "x.py", "made.py", "..py", "/.py"]),
        )
        return st.tuples(
            st.just(cls),
            st.one_of(
                st.lists(good, max_size=4), st.lists(good, max_size=4), st.lists(word, max_size=4)
            ),
        )

    return st.one_of(*map(of, COMMANDS))  # made once: flatmap would make it for every example


OPTIONS = {
    "rope": ["base", "fraction", "layout"],
    "sinusoidal": ["base", "scale"],
    "learned": ["rows"],
    "alibi": ["learned"],
    "t5": ["buckets", "max_distance"],
    "window": ["size", "sinks"],
    "randomized": ["max", "test"],
    "kerple": ["kind"],
}
VALUES = [
    *"0123",
    "16",
    "64",
    "-1",
    "0.5",
    "1e-300",
    "1e308",
    "1e400",
    "9" * 30,
    str(2**63),
    str(2**53),
    "half",
    "interleaved",
    "log",
    "power",
    "draw",
    "True",
    "'half'",
    "'a b'",
    "'\\n'",
    "'\\x1b[2J'",
    "0xff",
    "1_0",
    *TRAPS,
]


NAMED = st.sampled_from([*NAMES] * 3 + ["ropee", "Piece", "canary"])


@functools.cache
def written(name: str) -> st.SearchStrategy[str]:
    """The scheme of that name, with some options, mostly its own."""
    needed = {"window": "window(size=4)", "randomized": "randomized(max=64)"}.get(name, name)
    option = st.sampled_from([*OPTIONS.get(name, []) * 4, "per_layer", "x"])
    pairs = st.lists(st.builds("{}={}".format, option, st.sampled_from(VALUES)), max_size=2)
    some = pairs.map(lambda texts: f"{name}({', '.join(texts)})" if texts else name)
    return st.one_of(st.just(needed), st.just(needed), some)


def joined(mentions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions of these mentions."""
    return st.recursive(
        mentions,
        lambda inner: st.one_of(
            st.builds("{} | {}".format, inner, inner),
            st.builds("{} + {}".format, inner, inner),
            st.builds("({})".format, inner),
        ),
        max_leaves=4,
    )


GOOD = joined(
    st.sampled_from(
        [
            "nope",
            "rope",
            "alibi",
            "t5(buckets=4)",
            "window(size=3, sinks=1)",
            "logn",
            "kerple(kind=power)",
            "alibi(learned=True, per_layer=True)",
            "rope(base=500, fraction=0.5)",
        ]
    )
)
EARLY = st.builds(
    "{} + {}".format,
    st.sampled_from(
        ["learned", "sinusoidal(scale=1)", "randomized(max=16)", "learned(rows=9, per_layer=False)"]
    ),
    GOOD.map("({})".format),
)
ANY = joined(NAMED.flatmap(written))
KNOWN = [  # what once was refused with a page, or in two lines, or only by a crash in the first step
    "\x01" * 500,
    "a" * 500,
    "rope(a=1)" * 55,
    " + ".join(["rope"] * 70),
    "a." * 249 + "b",
    f"rope({'a' * 480}=1)",
    f"rope(base=0x{'f' * 300})",
    "1" * 450,
    "'" + "\\x01" * 120 + "'",
    "rope(base='a\\nb')",
    "rope(layout='\\n')",
    "kerple(kind='\\x1b[2J')",
    "rope(per_layer='\\r')",
    f"window(size={'9' * 300})",
    f"window(size=4, sinks={2**70})",
    "rope(base='\\ud800')",
]


# ---- throwing


def test_generated_config_files_are_read_or_refused(
    tally: Counter, canary: None, record: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "some.py"

    def parse(value: tuple[type, bytes]) -> None:
        cls, content = value
        path.write_bytes(content)
        with nothing_runs():
            settings, _ = configure(cls, ["some.py"], "usage")
        assert settings.checked() == settings  # what was read is good, and in its own form

    throw("config files", [], files(), parse, tally, record)


def test_generated_command_lines_are_read_or_refused(
    tally: Counter, canary: None, record: Callable[..., None]
) -> None:
    def parse(value: tuple[type, list[str]]) -> None:
        cls, argv = value
        with nothing_runs():
            settings, words = configure(
                cls, [word for word in argv if word not in ("--help", "-h")], "usage"
            )
        assert settings.checked() == settings and set(words) <= set(argv)

    throw("command lines", [], command_lines(), parse, tally, record)


def test_generated_position_expressions_are_built_or_refused(
    tally: Counter, canary: None, record: Callable[..., None]
) -> None:
    """What is accepted makes a scheme, and a model that reads a text with it."""
    scheme_names()  # runs the files of the zoo, code of the project, before anything is watched
    text_of_8 = torch.arange(8)[None]

    def parse(text: str) -> None:
        with nothing_runs():
            scheme = Scheme(text, TINY, 3)
        assert Scheme(scheme.text, TINY, 3).layers == scheme.layers
        model = GPT(GPTConfig(block_size=8, vocab_size=16, n_layer=3, n_head=2, n_embd=8, pos=text))
        assert model.losses(text_of_8, text_of_8).shape == (1, 8)

    throw(
        "position expressions",
        KNOWN,
        st.one_of(GOOD, EARLY, ANY, broken(ANY), NOISE),
        parse,
        tally,
        record,
    )
