"""Getting a published file whole: to a temporary name, with progress, and only if its size and SHA-256 are right."""

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from configurable import UserError

TIMEOUT = 30.0  # seconds without an answer
OTHERWISE = "check the network, or name a mirror with --url=URL or a copy you have with --file=PATH"


def download(url: str, path: Path, sha256: str, size: int) -> None:
    """Put the file at `url` (http or https) at `path`, if it has `size` bytes and that SHA-256; UserError otherwise.

    Nothing is left behind when it fails.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"{url!r} is not an http or https address")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".download-", dir=path.parent) as folder:
        part = Path(folder, path.name)
        try:
            receive(url, part, size)
        except urllib.error.HTTPError as error:
            raise UserError(f"{url} answered {error.code} {error.reason}; {OTHERWISE}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(
                f"{url} could not be downloaded ({reason or type(error).__name__}); {OTHERWISE}"
            ) from error
        verify(part, sha256, size, url)
        os.replace(part, path)


def receive(url: str, path: Path, size: int) -> None:
    """Write what `url` sends to `path`, one block more than `size` at most."""
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT) as answer,
        path.open("wb") as file,
        tqdm(total=size, unit="B", unit_scale=True, desc=path.name, disable=None) as bar,
    ):
        while file.tell() <= size and (block := answer.read(2**16)):
            file.write(block)
            bar.update(len(block))


def verify(path: Path, sha256: str, size: int, origin: str) -> None:
    """UserError unless the file at `path`, which came from `origin`, has `size` bytes and that SHA-256."""
    if not path.is_file():
        raise UserError(f"{origin} is not a file; {OTHERWISE}")
    found = path.stat().st_size
    if found != size:
        how = "cut short" if found < size else "longer than it should be"
        raise UserError(f"{origin} is {how}: {found:,} of {size:,} bytes; {OTHERWISE}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise UserError(
            f"{origin} is another file: its SHA-256 is {digest}, not {sha256}; {OTHERWISE}"
        )
