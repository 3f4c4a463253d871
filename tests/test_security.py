"""Code of a user's own runs only where it is named. That no file of others runs code is ruff's to check."""

from pathlib import Path

import pytest
from conftest import call
from test_train import OWN, run

import evaluate
import sample
from common.errors import UserError


@pytest.mark.usefixtures("here")
def test_a_file_of_schemes_runs_only_where_it_is_typed() -> None:
    marked = OWN.format(rate=1) + "\nopen('ran', 'a', encoding='utf-8').close()\n"
    Path("mine.py").write_text(marked, encoding="utf-8")
    Path("config.py").write_text("pos = 'root'\npos_file = 'mine.py'\n", encoding="utf-8")
    with pytest.raises(UserError, match="give it on the command line, --pos_file"):
        run("config.py", "--out_dir=run")
    assert not Path("ran").exists()
    assert run("--pos=root", "--pos_file=mine.py", "--out_dir=run") == 0
    Path("ran").unlink()
    for program in (evaluate, sample):
        with pytest.raises(UserError, match="if you trust it"):
            call(program, "run", "--device=cpu")
    assert not Path("ran").exists()
