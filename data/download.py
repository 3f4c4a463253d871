"""Download a published file. It is kept only if its SHA-256 is right."""

import os
from pathlib import Path

import requests
from tqdm import tqdm

import configurable
from configurable import UserError

TIMEOUT = 30.0  # seconds without an answer
OTHERWISE = "check the network, or name a mirror with --url=URL or a copy you have with --file=PATH"


def download(url: str, path: Path, sha256: str, otherwise: str = OTHERWISE) -> None:
    """Download `url` (http or https) to `path`, with progress.

    UserError unless it has this SHA-256; `otherwise` is what the user is told to do. Nothing is
    left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with requests.get(url, stream=True, timeout=TIMEOUT) as answer, part.open("wb") as file:
            answer.raise_for_status()
            size = int(answer.headers.get("Content-Length", 0))
            with tqdm(total=size, unit="B", unit_scale=True, desc=path.name, disable=None) as bar:
                for block in answer.iter_content(2**16):
                    file.write(block)
                    bar.update(len(block))
        verify(part, sha256, url, otherwise)
        os.replace(part, path)
    except requests.HTTPError as error:
        status = f"{error.response.status_code} {error.response.reason}"
        raise UserError(f"{url} answered {status}; {otherwise}") from error
    except requests.RequestException as error:
        reason = type(error).__name__
        raise UserError(f"{url} could not be downloaded ({reason}); {otherwise}") from error
    finally:
        part.unlink(missing_ok=True)


def verify(path: Path, sha256: str, origin: str, otherwise: str = OTHERWISE) -> None:
    """UserError unless the file at `path`, from `origin`, is there and has this SHA-256."""
    if not path.is_file():
        raise UserError(f"{origin} is not a file; {otherwise}")
    digest = configurable.sha256(path)
    if digest != sha256:
        raise UserError(f"{origin} is another file, of SHA-256 {digest}; {otherwise}")


def model_folder(name: str | Path) -> Path:
    """The folder of a Hugging Face model: `name`, or where the model of that name is kept.

    A download takes its settings, tokenizer and weights; UserError if there is none.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(name), allow_patterns=["*.json", "model*.safetensors"]))
    except (ImportError, OSError, ValueError) as error:
        raise UserError(
            f"{name} is neither a folder nor a model ({str(error).splitlines()[0]}); a name needs "
            "a network and huggingface_hub (pip)"
        ) from error
