"""Write a run, with its tokenizer, as a Hugging Face model: `tools.export out/RUN FOLDER`."""

import sys

from common.errors import UserError, run_program
from run.huggingface import save_model
from run.load import load_run


def main() -> None:
    """Write it, and say as what."""
    if len(sys.argv) != 3:
        raise UserError("name a run and a new folder: python -m tools.export out/RUN FOLDER")
    run = load_run(sys.argv[1], device="cpu")
    config = save_model(run.model, sys.argv[2], run.corpus)
    print(f"{sys.argv[2]}: of type {config['model_type']}")


if __name__ == "__main__":
    run_program(main)
