"""Files as they lie on disk: found, unzipped, decoded, and bounded in size.

Nothing here knows a format. A file is read in one piece or line by line; both stop at a limit, so
that a gzip bomb or an endless device costs an error message and no memory.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from servefit.errors import ServefitError

#: Files read in one piece (JSON, CSV, logs); JSON Lines are streamed.
MAX_WHOLE_BYTES = 512 * 1024**2

#: What a gzip file may unpack to.
MAX_UNZIPPED_BYTES = 1024**3

#: The longest line: a request record with all its token times stays far below.
MAX_LINE = 64 * 1024**2

#: As much of a file as is looked at to tell what it is.
HEAD = 64 * 1024

#: Files below a folder; more is not a folder of results.
MAX_FILES = 10_000

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BINARY = {b"PK\x03\x04": "a zip archive", b"PAR1": "a Parquet file", b"SQLi": "an SQLite database"}


class LineTooLongError(ServefitError):
    """A line is longer than any record."""


@dataclass(frozen=True)
class Source:
    """A file to import.

    Attributes:
        name: as the user named it, or as it was found below a folder; ``-`` is stdin.
        data: content that is already in memory, as of stdin; else the file is read.
    """

    name: str
    data: bytes | None = None

    def head(self) -> str:
        """The first 64 KiB as text."""
        with self._open() as stream:
            raw = _read(stream, HEAD, self.name)
        return _decode(raw, _encoding(raw, self.name), partial=True)

    def text(self) -> str:
        """The whole file as text.

        Raises:
            ServefitError: it cannot be read, is binary, or is too large.
        """
        with self._open() as stream:
            raw = _read(stream, MAX_WHOLE_BYTES + 1, self.name)
        if len(raw) > MAX_WHOLE_BYTES:
            raise ServefitError(
                f"{self.name}: is larger than {MAX_WHOLE_BYTES >> 20} MiB: give its summary, or "
                "one record a line (JSON Lines), which is read as a stream"
            )
        return _decode(raw, _encoding(raw[:HEAD], self.name))

    def lines(self) -> Iterator[str]:
        """Line by line, without holding the file.

        Raises:
            ServefitError: as of `text`; a line is too long.
        """
        with self._open() as stream:
            start = _read(stream, HEAD, self.name)
        encoding = _encoding(start, self.name)
        with self._open() as stream:
            reader = io.TextIOWrapper(stream, encoding, errors="replace")
            try:
                while line := reader.readline(MAX_LINE):
                    if len(line) == MAX_LINE:
                        raise LineTooLongError(f"{self.name}: has a line of over 64 MiB")
                    yield line
            except (OSError, EOFError, zlib.error, UnicodeError) as error:
                raise ServefitError(f"{self.name}: cannot be read to its end ({error})") from None

    def modified_s(self) -> float | None:
        """When the file was last changed, in seconds of the epoch; ``None`` of stdin."""
        try:
            return None if self.data is not None else os.stat(self.name).st_mtime
        except OSError:
            return None

    def _open(self) -> IO[bytes]:
        try:
            stream: IO[bytes] = (
                open(self.name, "rb")  # noqa: SIM115  (whoever asked for it closes it)
                if self.data is None
                else io.BytesIO(self.data)
            )
            magic = stream.read(2)
            stream.seek(0)
        except OSError as error:
            raise ServefitError(f"{self.name}: cannot be read ({error.strerror})") from None
        if magic == b"\x1f\x8b":
            return cast("IO[bytes]", io.BufferedReader(_Unzipped(stream, self.name)))
        return stream


class _Unzipped(io.RawIOBase):
    """What a gzip file unpacks to, up to a limit."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._file = stream
        self._stream = gzip.GzipFile(fileobj=stream)
        self._left = MAX_UNZIPPED_BYTES
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast("bytearray", buffer))
        try:
            data = self._stream.read(len(view))
        except (OSError, EOFError, zlib.error) as error:
            raise ServefitError(f"{self._name}: is a damaged gzip file ({error})") from None
        self._left -= len(data)
        if self._left < 0:
            raise ServefitError(
                f"{self._name}: unpacks to more than {MAX_UNZIPPED_BYTES >> 30} GiB: split it"
            )
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def find_sources(paths: Sequence[str | Path]) -> list[Source]:
    """The files named, and all regular files below the folders named, each once.

    Links inside folders are not followed, and hidden files are passed over.

    Raises:
        ServefitError: a path does not exist, is no file or folder, or a folder holds too many.
    """
    found: dict[str, Source] = {}
    for path in map(str, paths):
        if path == "-":
            found["-"] = Source("-", sys.stdin.buffer.read(MAX_WHOLE_BYTES))
            continue
        for name in _walk(path):
            found.setdefault(os.path.realpath(name), Source(name))
            if len(found) > MAX_FILES:
                raise ServefitError(f"{path}: holds more than {MAX_FILES} files: name a subfolder")
    return list(found.values())


def _walk(path: str) -> Iterator[str]:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServefitError(f"{path}: cannot be read ({reason})") from None
    if stat.S_ISREG(mode):
        yield path
        return
    if not stat.S_ISDIR(mode):
        raise ServefitError(f"{path}: is neither a file nor a folder")
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files):
            full = os.path.join(folder, name)
            if not name.startswith(".") and stat.S_ISREG(os.lstat(full).st_mode):
                yield full


def _read(stream: IO[bytes], size: int, name: str) -> bytes:
    """Up to ``size`` bytes; a raw gzip stream gives them in parts."""
    parts, left = [], size
    try:
        while left > 0 and (part := stream.read(min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise ServefitError(f"{name}: cannot be read ({error.strerror})") from None
    return b"".join(parts)


def _encoding(head: bytes, name: str) -> str:
    """The encoding that the first bytes show: a mark, zeros of UTF-16, UTF-8, else Latin-1."""
    if not head.strip():
        raise ServefitError(f"{name}: is empty")
    for magic, what in _BINARY.items():
        if head.startswith(magic):
            raise ServefitError(f"{name}: is {what}: export it as JSON, CSV or text")
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if b"\0" in head:
        for encoding, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[0::2])):
            if zeros.count(0) > 0.9 * len(zeros):
                return encoding
        raise ServefitError(f"{name}: holds binary data: results are JSON, CSV or text")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _decode(raw: bytes, encoding: str, *, partial: bool = False) -> str:
    if not partial:
        return raw.decode(encoding, errors="replace")
    return codecs.getincrementaldecoder(encoding)(errors="replace").decode(raw)
