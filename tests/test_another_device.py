"""Every scheme on a device that this machine lacks, see another_device.py."""

import subprocess
import sys
from pathlib import Path


def test_every_scheme_and_extension_stays_on_another_device() -> None:
    """In a process of its own: torch counts the devices once, when it first computes a gradient."""
    tests = Path(__file__).with_name("another_device.py")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", tests]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr  # 5 if there were no tests
