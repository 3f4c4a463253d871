"""Errors that users can correct, and programs that end with a sentence."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn


class UserError(ValueError):
    """A mistake that the user can correct. Its text says what is wrong, where, and what to do."""


# ---- programs


def run_program(main: Callable) -> NoReturn:
    """Run a program and exit with the code that `main()` returns; None is 0.

    A UserError, or a system error such as a full disk, prints one sentence to stderr and exits 1,
    or a traceback with --debug, which `main` does not see. Ctrl-C exits 130. If the reader of the
    output has closed it, as in `... | head`, the program ends silently and exits 141, as shells
    expect.
    """
    debug = "--debug" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        code = main()
        sys.stdout.flush()  # a closed pipe is noticed here, and not after the program
    except KeyboardInterrupt:
        print("interrupted: what was written is kept", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        os._exit(141)  # 128 + SIGPIPE; sys.exit would flush, and complain, again
    except (UserError, OSError) as error:
        if debug:
            raise
        sentence = str(error)
        if isinstance(error, OSError) and error.filename:
            sentence = f"{error.filename}: {error.strerror}"
        print(f"error: {sentence}", file=sys.stderr)
        code = 1
    sys.exit(code)
