"""What a user may do wrong in every program: one sentence, exit code 1, and nothing is written."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ablate
import configurable
import evaluate
import report
import sample
import train
from common.errors import UserError, run_program

ROOT = Path(configurable.__file__).parent
PROGRAMS = {
    "train": train,
    "evaluate": evaluate,
    "sample": sample,
    "report": report,
    "ablate": ablate,
}
MISTAKES = [
    ("train --n_layer=zero", "n_layer"),
    ("train --pos=alib", "alibi"),
    ("train --pos=rope(bass=3)", "base"),
    ("train --pos=rope+(alibi", "quot|never closed"),
    ("train --dataset=stdlibb", "stdlib"),
    ("train --pos_file=absent.py", "there is no Python file .*absent.py"),
    ("train --init_from=out/absent", "absent"),
    ("train --device=cuda:77", "cuda:77"),
    ("train --device=tpu", "tpu"),
    ("train --block_size=16000000", "block_size|tokens"),
    ("train rope", "rope"),
    ("train README.md", "neither a config file"),
    ("train max_iters=5", "nor --name=value"),
    ("ablate rope seeds=1", "seeds=1"),
    ("train --wandb_log True", "--name=value"),
    ("train --out_dir=/proc/x", "/proc"),
    ("ablate rope --out_dir=/proc/x", "/proc"),
    ("train config/absent.py", "config/"),
    ("train --pos=learned --extend=pi", "pi"),
    ("evaluate", "no run folder"),
    ("evaluate out/absent", "absent"),
    ("evaluate out/absent --protocols=fixed", "fixed_targets"),
    ("evaluate out/absent --lengths=64", "eval_lengths"),
    ("evaluate out/absent --out=f.xyz", ".pdf or .svg"),
    ("report out/absent --out=f.xyz", ".pdf or .svg"),
    ("sample", "run"),
    ("sample out/absent", "absent"),
    ("sample out/absent --temperature=-1", "temperature"),
    ("ablate rope --pos_file=absent.py", "there is no Python file .*absent.py"),
    ("ablate rope --init_from=out/x", "from scratch"),
    ("ablate rope --eval_lengths=16000000", "16000000"),
    ("train --extend=all", "all is for evaluate.py"),
    ("evaluate yarn --extend=all", "yarn is an extension: name a run"),
    ("evaluate none", "none is an extension: name a run"),
    ("evaluate out/rope+alibi-s9", "out/rope.alibi-s9/config.json is missing"),
    ("evaluate yran", "yran is an extension|did you mean"),
    ("evaluate nothere", "nothere/config.json is missing"),
    ("evaluate out/absent yarn", "absent"),
]


@pytest.mark.parametrize(("line", "reason"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_gets_a_sentence_and_nothing_is_written(line, reason, tmp_path, monkeypatch):
    if "cuda" in line and torch.cuda.is_available():
        pytest.skip("this machine has a card")
    monkeypatch.chdir(tmp_path)
    program, *words = line.split(" ")
    monkeypatch.setattr(sys, "argv", [f"{program}.py", *words])
    with pytest.raises((UserError, OSError), match=reason) as error:
        PROGRAMS[program].main()
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_scheme_is_no_setting(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["train.py", "alibi"])
    with pytest.raises(UserError, match="config/alibi.py"):
        train.main()


def test_debug_is_none_of_the_arguments_of_a_program(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "argv", ["x.py", "a", "--debug"])
    with pytest.raises(SystemExit) as end:
        run_program(lambda: seen.extend(sys.argv[1:]))
    assert not end.value.code and seen == ["a"]


def test_a_process_ends_with_a_sentence_and_code_1_and_shows_more_with_debug(tmp_path):
    command = [sys.executable, ROOT / "report.py", "out/absent", "--debug"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("common.errors.UserError: ")
