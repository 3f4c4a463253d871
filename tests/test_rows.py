"""Texts with answers: recall, tasks, needles and digits, their corpora and how they are trained on."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import data.digits.prepare as digits
import data.needles.prepare as needles
import data.recall.prepare as recall
import data.tasks.prepare as tasks
from common.errors import UserError
from data import batches
from data import corpus as data
from data.corpus import OFFLINE, TASKS, load_corpus, new_folder, write_corpus
from measure.questions import fill_answers
from tables import statistics
from tables.records import Record


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small corpora of each kind: recall of up to 512 inputs, tasks, needles, digits, text."""
    root = tmp_path_factory.mktemp("corpora")
    source = (Path(data.__file__).read_bytes() * 8)[:100_000]
    ids = [np.frombuffer(source, np.uint8)]
    about = {"tokenizer": "bytes", "source": "a test", "rule": "as given"}
    write_corpus(root / "text", {"train": ids, "val": ids}, **about)
    with pytest.MonkeyPatch.context() as patch:
        for module in (tasks, needles):
            patch.setattr(module, "TRAIN_TEXTS", 600)
        patch.setattr(tasks, "TEST_TEXTS", 5)
        patch.setattr(digits, "TRAIN_IMAGES", 600)
        patch.setattr(digits, "TEST_IMAGES", 12)
        patch.setattr(needles, "VALUES", 40)
        patch.setattr(needles, "TIMES", 4)
        patch.setattr(recall, "TRAIN_TOKENS", {"noise": 2**16, "text": 2**16})
        recall.prepare(root / "recall", longest=512, trained=128)
        recall.prepare(root / "text_recall", load_corpus("text", root), 512, 128)
        digits.prepare(root / "digits", side=4)
        for name in TASKS:
            tasks.prepare(root / name)
        for kind in needles.KINDS:
            needles.prepare(root / kind, load_corpus("text", root), kind, 128, fraction=0.5)
    return root


# ---- what is generated


def read_recall(tokens, row, kinds):
    """(kind, place of the answer, places of the writes) of each question of a piece of a text, read
    from left to right; AssertionError if the answer is not the value of the latest write before it.
    Of order are those whose name is written three times in the row.
    """
    first, end = kinds["first"], kinds["end"]
    names = ((row[row >= end] - end) // recall.VALUES).tolist()
    writes: dict[int, list[tuple[int, int]]] = {}  # of each name: place, value
    questions = []
    for t, token in enumerate(tokens):
        if token >= end:
            name, value = divmod(int(token) - end, recall.VALUES)
            writes.setdefault(name, []).append((t, value))
        elif token >= first and t + 1 < len(tokens):
            name = int(token) - first
            before = writes.get(name, [])
            kind = "content" if names.count(name) == 1 else "order"
            if len(before) == (1 if kind == "content" else 3):
                assert tokens[t + 1] == recall.ANSWER + before[-1][1]
                assert len({value for _, value in before}) == len(before)
                questions.append((kind, t + 1, [place for place, _ in before]))
    return questions


@pytest.mark.parametrize("length", [16, 64, 200, 512])
@pytest.mark.parametrize("name", ["recall", "text_recall"])
def test_a_question_is_scored_if_all_its_writes_are_in_the_piece(folder, name, length):
    corpus = load_corpus(name, folder)
    kinds = corpus.meta["questions"]
    starts = batches.chunk_starts(corpus, "val", length)
    assert starts.shape[1] == 512 // length and (starts[:, 0] + length)[1] == 2 * 513 - 1
    starts = starts.ravel()[:400]
    whole = corpus.val.reshape(-1, 513)[starts // 513]
    tokens, scored = batches.chunks(corpus, "val", starts, length)
    asked = {"content": 0, "order": 0}
    for piece, row, stated in zip(tokens, whole, scored, strict=True):
        expected = np.where(piece < 256, batches.OF_BYTE if name == "text_recall" else 0, 0)
        for kind, answer, places in read_recall(piece, row, kinds):
            distance = answer - 1 - places[0]
            expected[answer] = distance + (batches.OF_ORDER if kind == "order" else 0)
            assert places[-1] >= answer - 1 - max(distance, 4) and len(places) in (1, 3)
            assert answer - 1 - places[-1] >= 0.69 * distance - 3 or kind == "content"
            asked[kind] += 1
        assert stated.tolist() == expected.tolist()
    assert min(asked.values()) > 10


def test_every_place_of_a_text_has_the_same_densities_and_distances_are_log_uniform():
    tokens, distances = recall.place_names(np.random.default_rng(0), 4000, 512, 24)
    first = recall.ANSWER + recall.VALUES
    end = first + 16 + 8  # the questions of content and those of order
    asked = np.sort(np.where((tokens >= first) & (tokens < end), tokens, 0), axis=1)[:, -24:]
    assert (asked == np.arange(first, end)).all()  # one of each name
    written = tokens >= end
    values = (tokens[written] - end) % recall.VALUES
    assert np.allclose(np.bincount(values) / len(values), 1 / 4, atol=0.01)
    names = ((tokens[written] - end) // recall.VALUES).reshape(4000, 16 + 3 * 8)
    writes = np.stack([np.bincount(row, minlength=24) for row in names])
    assert ((writes == 3).sum(axis=1) == 8).all() and ((writes == 1).sum(axis=1) == 16).all()
    # a name is of order in a third of the texts, so its token does not tell the kind
    assert abs((writes == 3).mean(axis=0) - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 4000)
    kind_of = np.zeros(tokens.shape, dtype=np.int64)  # how often the name asked for is written
    row, place = np.nonzero((tokens >= first) & (tokens < end))
    kind_of[row, place] = writes[row, tokens[row, place] - first]
    for least, n_writes, n_asked in [(1, 1, 16), (4, 3, 8)]:
        is_question = kind_of == n_writes
        share = n_asked / 513
        assert abs(is_question.mean(axis=0) - share).max() < 5 * np.sqrt(share / 4000)
        # near the question the distances are as they were drawn
        backs = distances[:, 1:][is_question[:, :-1]]
        near = backs[backs > 0] % batches.OF_ORDER
        assert ((backs >= batches.OF_ORDER) == (n_writes == 3))[backs > 0].all()
        octaves = np.histogram(near, np.array([1, 2, 4, 8]) * least - 0.5)[0]
        assert np.allclose(octaves / octaves.sum(), 1 / 3, atol=0.03)


def test_the_text_around_questions_is_that_of_the_corpus(folder):
    corpus, text = load_corpus("text_recall", folder), load_corpus("text", folder)
    source = text.val.tobytes()
    for row in corpus.val.reshape(-1, 513)[::100]:
        assert row[row < 256].astype(text.val.dtype).tobytes() in source
    train_scored = corpus.train_answers[corpus.train < 256]
    assert abs((train_scored == batches.OF_BYTE).mean() - recall.SHARE) < 0.01
    assert (corpus.val_answers[corpus.val < 256] == batches.OF_BYTE).all()
    noise = load_corpus("recall", folder).val
    assert set(bytes(noise[noise < 256].tolist())) == set(b"abcdefghijklmnop")
    # both have the same tokens: a model of one is tested on the other
    assert (
        noise.max() == corpus.val.max()
        and corpus.meta["signs"] == load_corpus("recall", folder).meta["signs"]
    )
    assert corpus.tokenizer.decode([97, 256, 260, corpus.vocab_size - 1]) == "a<0><0?><23=3>"


def test_a_corpus_that_is_too_short_for_texts_is_named():
    with pytest.raises(
        UserError, match="50 texts with 425 bytes of a corpus each need more than the 400"
    ):
        recall.make_texts(np.random.default_rng(0), 50, 512, 24, np.zeros(400, dtype=np.uint8))


def test_every_length_scores_the_same_bytes_at_the_ends_of_texts(folder):
    corpus = load_corpus("text_recall", folder)
    found = []
    for length in (32, 64, 512):
        tokens, kind, distance, documents = batches.tested_chunks(corpus, length, 64)
        assert len(tokens) == len(documents) == 64 * (512 // length)
        is_byte = kind == batches.BYTE
        assert not is_byte[:, : -batches.SCORED].any() and not distance[is_byte].any()
        found.append((tokens[is_byte].tolist(), np.sort(documents[is_byte.any(axis=1)]).tolist()))
        # answers are those of the chunks as they stand in the file, each with its own distance
        starts = batches.chunk_starts(corpus, "val", length)[batches.evenly(1024, 64)].ravel()
        _, scored = batches.chunks(corpus, "val", starts, length)
        for number, added in ((batches.CONTENT, 0), (batches.ORDER, batches.OF_ORDER)):
            asked = kind == number
            assert asked.any() and (distance[asked] + added == scored[asked]).all()
            assert (asked == ((scored > added) & (scored <= added + length))).all()
    assert found[0] == found[1] == found[2] and len(found[0][0]) > 64 * 20
    _, kind, _, _ = batches.tested_chunks(corpus, 16, 64)  # a chunk is shorter than what is scored
    assert not kind[:, 0].any()  # its first token has no loss
    assert statistics.standard_error([1.5]) is None  # as of the blocks of a single document


def tracked(question):
    """The variables of the value that is asked for, by replaying all assignments."""
    value = {}
    for name, source in re.findall(r"([A-Z])=([A-Z0-9]);", question):
        value[name] = value.get(source, source)  # a variable must be set by then
        assert value[name].isdigit()
    return "".join(name for name, of in value.items() if of == question[-2])


def most_frequent(question):
    """The three letters that stand most often; no two of the first four as often."""
    ranked = Counter(question[:-1].replace("-", "")).most_common(4)
    assert len({count for _, count in ranked}) == len(ranked) >= 3
    return "".join(letter for letter, _ in ranked[:3])


ANSWERS: dict[str, Callable[[str], str]] = {
    "copy": lambda q: q[:-1],
    "reverse": lambda q: q[-2::-1],
    "sort": lambda q: "".join(sorted(q[:-1])),
    "addition": lambda q: str(sum(map(int, q[:-1].split("+")))),
    "addition_reversed": lambda q: str(sum(int(n[::-1]) for n in q[:-1].split("+")))[::-1],
    "addition_hints": lambda q: str(sum(int(n[1::2][::-1]) for n in q[:-1].split("+")))[::-1],
    "parity": lambda q: str(q.count("1") % 2),
    "flipflop": lambda q: q[q.rindex("w") + 1],
    "induction": lambda q: q[q.index(q[-1]) + 1],
    "variable_tracking": tracked,
    "frequent_words": most_frequent,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answers_of_a_task_are_right_and_scored(folder, name):
    corpus = load_corpus(name, folder)
    assert set(ANSWERS) == set(tasks.TASKS) == {*TASKS} and name in OFFLINE
    about = corpus.meta["rows"]
    sizes = [*range(5, 61, 5), *tasks.FURTHER.get(name, ())]
    assert [size for size, _, _ in about["sizes"]] == sizes and about["trained"] == 20
    width = corpus.meta["rows"]["inputs"] + 1
    pairs = [batches.texts_of(corpus, size) for size in (5, 60, sizes[-1])]
    pairs.append((corpus.train.reshape(-1, width), corpus.train_answers.reshape(-1, width)))
    for tokens, scored in pairs:
        for row, marks in zip(tokens, scored, strict=True):
            line = bytes(row.tolist()).decode().rstrip("\n\0")
            first = int(marks.argmax())
            assert line.endswith(".") and marks.sum() == len(line) - first
            answer = line[first:-1]
            if name == "addition_hints":
                answer = answer[1::2]
            assert answer == ANSWERS[name](line[:first])


@pytest.mark.parametrize("size", [1, 20, 480])
def test_variable_tracking_scatters_chains_of_four_hops(size):
    places = []
    for seed in range(200):
        question, answer = tasks.variable_tracking(np.random.default_rng(seed), size)
        assert (question, answer) == tasks.variable_tracking(np.random.default_rng(seed), size)
        lines = re.findall("....", question[:-2])
        sets = [line for line in lines if line != "...."]
        assert len(lines) == size + 10 and len(sets) == 10 and len(set(sets)) == 10
        first = {line[2] for line in sets if line[2].isdigit()}
        assert len(first) == 2 and question[-2] in first and len(answer) == 5
        places.extend(k / len(lines) for k, line in enumerate(lines) if line != "....")
    assert np.mean(places) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("size", [*range(1, 21), 60, 120, 240, 480])
def test_frequent_words_follow_zipf_and_are_never_tied(size):
    question, answer = tasks.frequent_words(np.random.default_rng(size), size)
    assert (question, answer) == tasks.frequent_words(np.random.default_rng(size), size)
    counts = sorted(Counter(question[:-1]).values(), reverse=True)
    expected = [int((50 + 10 * size) * k**-2 / 1.6449340668) for k in range(1, 28)]
    assert counts == [count for count in expected if count]
    assert Counter(question)["-"] == counts[0] and answer == most_frequent(question)


@pytest.mark.parametrize("name", ["variable_tracking", "frequent_words"])
def test_texts_of_training_are_not_those_of_the_test(folder, name):
    corpus = load_corpus(name, folder)
    width = corpus.meta["rows"]["inputs"] + 1
    train = {bytes(row.tolist()).rstrip(b"\n") for row in corpus.train.reshape(-1, width)}
    tested = {bytes(row.tolist()).rstrip(b"\n\0") for row in batches.texts_of(corpus, 20)[0]}
    assert len(train) == 600 and len(tested) == 5 and not train & tested


def test_the_chance_of_a_task_is_that_of_a_guess():
    generator = np.random.default_rng(0)
    make, chance = tasks.TASKS["induction"]
    right = 0
    for _ in range(4000):
        question, answer = make(generator, tasks.TRAINED)
        right += question[1 + generator.integers(tasks.TRAINED)] == answer
    assert right / 4000 == pytest.approx(chance, abs=0.015)


def test_every_answer_counts_the_same_in_the_loss_and_its_error(monkeypatch):
    monkeypatch.setattr("measure.questions.GROUPS", 4)
    generator = np.random.default_rng(0)
    nats = generator.random((12, 30))
    distances = generator.integers(0, 2, nats.shape) * np.arange(1, 13)[:, None]
    distances[:3] = 0  # the first group has no answer
    row = Record("recall", 29)
    fill_answers(row, nats, distances)
    scored = distances > 0
    assert row.nats == pytest.approx(nats[scored].mean())
    assert np.mean(row.block_nats) == pytest.approx(row.nats)
    # of a ratio, by hand
    left = [(nats[n : n + 3] - row.nats)[scored[n : n + 3]].sum() for n in range(0, 12, 3)]
    by_hand = np.sqrt(4 / 3 * np.square(left).sum()) / scored.sum()
    assert row.stderr == pytest.approx(by_hand, rel=1e-4)


NEEDLE = re.compile(rb"\n([a-z]{2}):([A-Z]{4})\.")


@pytest.mark.parametrize("name", needles.KINDS)
def test_each_question_has_its_needle_at_the_distance_stated(folder, name):
    kind = needles.KINDS[name]
    corpus = load_corpus(name, folder)
    for size in (128, 1024):
        tokens, stated = batches.texts_of(corpus, size)
        for row, distances in zip(tokens, stated, strict=True):
            lines = list(NEEDLE.finditer(bytes(row.tolist())))
            hidden, questions = lines[: -kind.asked], lines[-kind.asked :]
            assert len(hidden) == kind.needles and lines[-1].end() == len(row)
            assert len({needle[1] for needle in hidden}) == (1 if kind.one_key else kind.needles)
            expected = np.zeros(len(row), dtype=int)
            for number, question in enumerate(questions):
                same = [needle for needle in hidden if needle[1] == question[1]]
                needle = same[number if kind.one_key else 0]
                assert needle[2] == question[2]
                expected[slice(*question.span(2))] = question.end(2) - 2 - needle.start()
            assert distances.tolist() == expected.tolist()
        counts = np.histogram(stated[stated > 0] / size, np.arange(9) / 8)[0] / needles.VALUE
        assert counts[counts > 0].min() >= 40 and (counts > 0).sum() >= 4
    inputs, targets = batches.batch(corpus, 128, 0, 0, 600)
    taught = [bool(NEEDLE.search(bytes(row.tolist()))) for row in inputs]
    assert sum(taught) == 300 and (targets >= 0).all()


@pytest.mark.parametrize(
    "name, how, sentence",
    [
        ("recall", {}, "recall has answers of its own"),
        ("text", {"fraction": 0.04}, "--needle_fraction=0.04 is not at least 0.05"),
        ("text", {"length": 16}, "these needles need at least 27 tokens"),
        ("text", {"length": 4096}, "the longest test has 131072 tokens, and must"),
    ],
)
def test_what_cannot_hold_needles_is_refused(folder, name, how, sentence):
    with pytest.raises(UserError, match=sentence):
        needles.prepare(
            folder / "no", load_corpus(name, folder), "single", **{"length": 128, **how}
        )


def test_digits_are_the_same_drawings_at_every_size(folder):
    corpus = load_corpus("digits", folder)
    assert corpus.meta["rows"]["width"] == 4 and corpus.unit == "token"
    fine = batches.texts_of(corpus, 256)[0][:, 1:].reshape(12, 8, 2, 8, 2).mean((2, 4))
    coarse = batches.texts_of(corpus, 64)[0][:, 1:].reshape(12, 8, 8).astype(float)
    apart = np.abs(coarse[:, None] - fine).mean((2, 3))  # (drawings, drawings)
    assert apart.argmin(1).tolist() == list(range(12))
    inputs, targets = batches.batch(corpus, 16, 0, 0, 32)
    assert (inputs[:, 0] == digits.START).all() and (targets >= 0).all()


def digest(tokens):
    """The first digits of the SHA-256 of tokens in uint16."""
    return hashlib.sha256(tokens.astype("<u2").tobytes()).hexdigest()[:12]


def test_texts_of_seed_0_are_those_of_the_published_runs(tmp_path):
    assert digest(recall.place_names(np.random.default_rng(0), 100, 512, 24)[0]) == "11334a131bcb"
    generator = np.random.default_rng(0)
    tested = digits.draw(generator, np.arange(digits.TEST_IMAGES) % 10)
    assert digest(digits.make_texts(*tested, 12)[0]) == "15aef6252d2d"
    assert tasks.prepare(tmp_path / "flipflop")["splits"]["val"]["sha256"][:12] == "1f4889b7b9fa"


# ---- how they are trained on


@pytest.mark.parametrize("name", ["recall", "copy", "digits"])
def test_an_epoch_reads_each_row_once_and_only_answers_are_targets(folder, name):
    corpus = load_corpus(name, folder)
    if name == "recall":  # pieces of texts
        length = 100
        starts = batches.chunk_starts(corpus, "train", length).ravel()
        written, scored = batches.chunks(corpus, "train", starts, length)
    else:
        length = corpus.meta["rows"]["inputs"]
        written = corpus.train.reshape(-1, length + 1)
        scored = corpus.train_answers.reshape(-1, length + 1)
    n = len(written)
    inputs, targets = batches.batch(corpus, length, 5, n, n)  # the second epoch
    assert sorted(inputs.tolist()) == sorted(written[:, :-1].tolist())
    assert (targets >= 0).sum() == (scored[:, 1:] > 0).sum()
    following = inputs[:, 1:][targets[:, :-1] >= 0]
    assert (following == targets[:, :-1][targets[:, :-1] >= 0]).all()
    resumed = batches.batch(corpus, length, 5, n + 100, n - 100)
    assert (resumed[0] == inputs[100:]).all() and (resumed[1] == targets[100:]).all()
    last = n - batches.UNREAD
    unread = batches.unread_texts(corpus, 5, last, length)
    assert (unread[0] == batches.batch(corpus, length, 5, last, 512)[0]).all()
    with pytest.raises(UserError, match=f"^{last + 1} of the .* are read by then"):
        batches.unread_texts(corpus, 5, last + 1, length)


def test_validation_texts_are_those_of_trained_sizes(folder):
    corpus = load_corpus("copy", folder)
    inputs, targets = batches.validation(corpus, corpus.meta["rows"]["inputs"], 999)
    assert len(inputs) == 20  # of sizes 5, 10, 15 and 20
    assert (targets >= 0).sum() == 5 * (6 + 11 + 16 + 21)
    text = load_corpus("text", folder)
    inputs, targets = batches.validation(text, 100, 7)
    assert inputs.shape == (7, 100) and (inputs[:, 1:] == targets[:, :-1]).all()
    starts = batches.sequence_starts(len(text.train), 100, 3, 9, 4)
    expected = text.train[starts[:, None] + np.arange(100)]
    assert (batches.batch(text, 100, 3, 9, 4)[0] == expected).all()


def test_a_corpus_of_texts_with_answers_is_trained_at_its_length(folder):
    copies, recalls, text = (load_corpus(name, folder) for name in ("copy", "recall", "text"))
    for length in (2, 100, 128):
        batches.check_rows(recalls, length, "cross")
    batches.check_rows(text, 999, "cross")
    with pytest.raises(UserError, match="texts of recall have 128 inputs: lower --block_size, or"):
        batches.check_rows(recalls, 129, "cross")
    with pytest.raises(UserError, match="the test texts of recall have only 512 inputs"):
        batches.tested_chunks(recalls, 513, 9)
    with pytest.raises(UserError, match="texts of copy have 4. inputs: set --block_size=4"):
        batches.check_rows(copies, 128, "cross")


@pytest.mark.parametrize("content", [None, b"no array", np.zeros(7, np.uint16)])
def test_damaged_answers_are_named(folder, content, monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "TRAIN_TEXTS", 40)
    tasks.prepare(tmp_path / "copy")
    path = tmp_path / "copy/val_answers.npy"
    path.unlink()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(UserError, match="copy is damaged .*: make the corpus again"):
        load_corpus("copy", tmp_path)


PROGRAMS = [
    (tasks, ["juggle"], "there is no task juggle, only copy"),
    (recall, ["--name=a/b"], "--name=a/b must be letters, digits"),
    (recall, ["--name=r2", "--longest=96"], "--longest=96: it must be a power of two, 512 to 1"),
    (recall, ["--text=copy", "--name=r2"], "--text=copy is not a corpus of bytes: name one such"),
    (recall, ["--text=recall", "--name=r2"], "--text=recall is not a corpus of bytes: name one"),
    (recall, [], "--name=recall is taken: choose another name, or replace your own"),
    (digits, ["--name=d2", "--side=3"], "--side=3: it must lie between 4 and 32"),
    (digits, ["--name=digits"], "--name=digits is taken"),
    (needles, ["--corpus=text", "--kind=single", "--name=copy"], "--name=copy is taken"),
]


@pytest.mark.parametrize("module, words, sentence", PROGRAMS)
def test_a_program_that_cannot_make_texts_is_a_sentence(
    module, words, sentence, folder, monkeypatch
):
    monkeypatch.setattr(new_folder, "__defaults__", (folder,))
    monkeypatch.setattr(recall, "load_corpus", lambda name: load_corpus(name, folder))
    monkeypatch.setattr("sys.argv", ["prepare.py", *words])
    with pytest.raises(UserError, match=sentence):
        module.main()
