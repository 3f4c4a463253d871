"""Download a published file and check its SHA-256, or download a Hugging Face model."""

from collections.abc import Sequence
from pathlib import Path

import requests
from tqdm import tqdm

from common import files
from common.errors import UserError

TIMEOUT = 30.0  # seconds without a response
OTHERWISE = "check the network, name a mirror with --url=URL, or put a copy at"


def download(url: str, path: Path, sha256: str, otherwise: str = "") -> None:
    """Download `url` (http or https) to `path`, with progress; an existing file is only checked.

    UserError unless it has this SHA-256; `otherwise` is the advice in the message. A failed
    download leaves no file.
    """
    otherwise = otherwise or f"{OTHERWISE} {path}"
    if path.exists():
        if files.sha256(path) != sha256:
            raise UserError(f"{path} is not the published file: delete it and start again")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with requests.get(url, stream=True, timeout=TIMEOUT) as answer, part.open("wb") as file:
            answer.raise_for_status()
            size = int(answer.headers.get("Content-Length", 0))
            with tqdm.wrapattr(file, "write", size, desc=path.name, disable=None) as watched:
                for block in answer.iter_content(2**16):
                    watched.write(block)
        digest = files.sha256(part)
        if digest != sha256:
            raise UserError(
                f"{url} is not the expected file (its SHA-256 is {digest}); {otherwise}"
            )
        part.replace(path)
    except requests.RequestException as error:
        raise UserError(f"{url} could not be downloaded ({error!s:.200}); {otherwise}") from error
    finally:
        part.unlink(missing_ok=True)


def model_folder(
    name: str | Path, patterns: Sequence[str] = ("*.json", "model*.safetensors")
) -> Path:
    """The folder of a Hugging Face model: `name` itself, or its download cache.

    `patterns` selects the files to download; UserError if there is no such model.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(name), allow_patterns=patterns))
    except (ImportError, OSError, ValueError) as error:
        raise UserError(
            f"{name} is neither a folder nor a model ({str(error).splitlines()[0]}); a name needs "
            "a network and huggingface_hub (pip)"
        ) from error
