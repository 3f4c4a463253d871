"""Download a published file. It is kept only if its size and its SHA-256 are right."""

import http
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tqdm import tqdm

import configurable
from configurable import UserError, require

TIMEOUT = 30.0  # seconds without an answer
OTHERWISE = "check the network, or name a mirror with --url=URL or a copy you have with --file=PATH"
ANOTHER = "name another file with --file=PATH, or leave it out: then it is downloaded"


def download(url: str, path: Path, sha256: str, size: int, otherwise: str = OTHERWISE) -> None:
    """Download `url` (http or https) to `path`, with progress; one that stopped goes on.

    UserError unless it has `size` bytes and this SHA-256. What has come is kept then, in a hidden
    file beside `path`, if more can follow. `otherwise` is what the user is told to do.
    """
    web = urllib.parse.urlsplit(url).scheme in ("http", "https")
    require(web, f"{url!r} is not an http or https address")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        receive(url, part, size)
    except urllib.error.HTTPError as error:
        raise UserError(f"{url} answered {error.code} {error.reason}; {otherwise}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error) or type(error).__name__
        raise UserError(f"{url} could not be downloaded ({reason}); {otherwise}") from error
    try:
        verify(part, sha256, size, url, otherwise)
    except UserError:
        if part.stat().st_size >= size:  # it is another file
            part.unlink()
        raise
    os.replace(part, path)


def receive(url: str, path: Path, size: int) -> None:
    """Write what `url` sends to `path`, behind what is there already, if the server can do that.

    At most one block more than `size` bytes is written.
    """
    have = path.stat().st_size if path.exists() else 0
    if have >= size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        rest = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        total = answer.headers["Content-Range" if rest else "Content-Length"] or ""
        told = total.rpartition("/")[2]
        if told.isdecimal() and int(told) != size:
            raise ValueError(f"it is another file, of {int(told):,} bytes and not {size:,}")
        bar = tqdm(total=size, unit="B", unit_scale=1, desc=path.name, leave=False, disable=None)
        with path.open("ab" if rest else "wb") as file, bar:
            bar.update(file.tell())
            while file.tell() <= size and (block := answer.read(2**16)):
                file.write(block)
                bar.update(len(block))


def verify(path: Path, sha256: str, size: int, origin: str, otherwise: str = ANOTHER) -> None:
    """UserError unless the file at `path`, from `origin`, has `size` bytes and this SHA-256."""
    require(path.is_file(), f"{origin} is not a file; {otherwise}")
    found = path.stat().st_size
    how = "cut short" if found < size else "longer than it should be"
    require(found == size, f"{origin} is {how}: {found:,} of {size:,} bytes; {otherwise}")
    digest = configurable.sha256(path)
    found = f"its SHA-256 is {digest}, not {sha256}"
    require(digest == sha256, f"{origin} is another file: {found}; {otherwise}")
