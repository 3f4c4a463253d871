"""Download a published file. It is kept only if its size and its SHA-256 are right."""

import os
from pathlib import Path

import requests
from tqdm import tqdm

import configurable
from configurable import UserError

TIMEOUT = 30.0  # seconds without an answer
OTHERWISE = "check the network, or name a mirror with --url=URL or a copy you have with --file=PATH"
ANOTHER = "name another file with --file=PATH, or leave it out: then it is downloaded"


def download(url: str, path: Path, sha256: str, size: int, otherwise: str = OTHERWISE) -> None:
    """Download `url` (http or https) to `path`, with progress.

    UserError unless it has `size` bytes and this SHA-256; `otherwise` is what the user is told to
    do. Nothing is left behind then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with (
            requests.get(url, stream=True, timeout=TIMEOUT) as answer,
            part.open("wb") as file,
            tqdm(total=size, unit="B", unit_scale=True, desc=path.name, disable=None) as bar,
        ):
            answer.raise_for_status()
            for block in answer.iter_content(2**16):
                file.write(block)
                bar.update(len(block))
                if file.tell() > size:  # another file, perhaps without an end
                    break
        verify(part, sha256, size, url, otherwise)
        os.replace(part, path)
    except requests.HTTPError as error:
        status = f"{error.response.status_code} {error.response.reason}"
        raise UserError(f"{url} answered {status}; {otherwise}") from error
    except requests.RequestException as error:
        reason = type(error).__name__
        raise UserError(f"{url} could not be downloaded ({reason}); {otherwise}") from error
    finally:
        part.unlink(missing_ok=True)


def verify(path: Path, sha256: str, size: int, origin: str, otherwise: str = ANOTHER) -> None:
    """UserError unless the file at `path`, from `origin`, has `size` bytes and this SHA-256."""
    if not path.is_file():
        raise UserError(f"{origin} is not a file; {otherwise}")
    found = path.stat().st_size
    if found < size:
        raise UserError(f"{origin} is cut short: {found:,} of {size:,} bytes; {otherwise}")
    if found > size:
        raise UserError(f"{origin} is longer than {size:,} bytes: another file; {otherwise}")
    digest = configurable.sha256(path)
    if digest != sha256:
        raise UserError(f"{origin} is another file, of SHA-256 {digest}; {otherwise}")
