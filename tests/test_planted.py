"""The examination against the schemes of planted.py, which were written without a look at it."""

from pathlib import Path

import pytest
from planted import HONEST, PLANTED

from common.errors import UserError
from configurable import GPTConfig
from measure.examine import examine

pytestmark = pytest.mark.slow
SIZES = dict(block_size=32, vocab_size=256, n_layer=4, n_head=2, n_embd=32)
LEAST = 190  # of all planted faults are refused or warned of


def sentence_about(source: str, pos: str, folder: Path) -> str:
    path = folder / "theirs.py"
    path.write_text(source, encoding="utf-8")
    try:
        return "; ".join(examine(GPTConfig(pos=pos, **SIZES), path))
    except UserError as error:
        return str(error)


def test_planted_faults_are_refused_or_warned_of(tmp_path):
    sentences = {case.name: sentence_about(case.source, case.pos, tmp_path) for case in PLANTED}
    missed = [name for name, sentence in sentences.items() if not sentence]
    print(f"{len(sentences) - len(missed)} of {len(sentences)} found; missed: {missed}")
    assert len(sentences) - len(missed) >= LEAST
    assert all(s.startswith("theirs.py: ") and "\n" not in s for s in sentences.values() if s)


@pytest.mark.parametrize("case", HONEST, ids=lambda case: case.name)
def test_no_honest_scheme_is_refused(case, tmp_path):
    assert sentence_about(case.source, case.pos, tmp_path) == ""
