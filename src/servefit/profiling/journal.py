"""The campaign file: one row a finished point, safe against kills, full disks and twins."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from servefit.errors import ServefitError
from servefit.runs.relations import FAILED_SHARE
from servefit.runs.schema import SCHEMA_VERSION

SUFFIXES = (".jsonl", ".ndjson")


class Journal:
    """A table of runs in JSON Lines that rows are appended to; use as a context manager.

    A row is written by one call and synced to the disk before `append` returns, so that a kill
    leaves either the row or nothing of it (or a torn last line, which the next `Journal` cuts
    off). The file is locked against a second process for as long as it is open; the lock goes
    with the process, however that ends.

    Attributes:
        path: the file.
        rows: the rows in it.
    """

    def __init__(self, path: str | Path) -> None:
        """Nothing is opened yet."""
        self.path = Path(path)
        self.rows: list[dict[str, Any]] = []
        self._fd = -1

    def __enter__(self) -> Self:
        """Open, lock and read the file.

        Raises:
            ServefitError: another process has it; it cannot be opened; it is no JSON Lines.
        """
        if self.path.suffix.lower() not in SUFFIXES:
            raise ServefitError(
                f"{self.path}: a campaign is appended to as JSON Lines: name it *.jsonl (every "
                "command reads that)"
            )
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise ServefitError(f"{self.path}: cannot be opened ({error.strerror})") from None
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise ServefitError(f"{self.path}: is no regular file")
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ServefitError(
                    f"{self.path}: another servefit is writing to it: wait for it, or write to "
                    "another file"
                ) from None
            self._read()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close and unlock."""
        os.close(self._fd)

    @property
    def measured(self) -> set[Any]:
        """Ids of the points that a row has a result for."""
        return {row.get("point_id") for row in self.rows if has_result(row)}

    def _read(self) -> None:
        data = b""
        while part := os.read(self._fd, 2**20):
            data += part
        *lines, tail = data.split(b"\n")
        for known in filter(None, map(_row, (*lines, tail))):
            self._refuse_newer(known.get("schema_version"))
        for number, line in enumerate(lines, 1):
            if line.strip():
                row = _row(line)
                if row is None:
                    raise ServefitError(f"{self.path}: line {number} is no JSON object")
                self.rows.append(row)
        if not tail:
            return
        row = _row(tail)
        if row is not None:  # whole, only its newline is missing
            self.rows.append(row)
            self._write(b"\n")
        elif tail.startswith(b"{"):  # torn by a kill or a full disk
            os.ftruncate(self._fd, len(data) - len(tail))
        else:
            raise ServefitError(f"{self.path}: the last line is no JSON object")

    def _refuse_newer(self, version: object) -> None:
        """As reading the table would: nothing of another meaning may stand beside our rows."""
        if version is None or (isinstance(version, int) and version <= SCHEMA_VERSION):
            return
        raise ServefitError(
            f"{self.path}: is of schema version {version}, this servefit knows up to "
            f"{SCHEMA_VERSION}: upgrade servefit, or write to another file"
        )

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row; it is on the disk when this returns.

        Raises:
            ServefitError: it cannot be written; the file is then as it was before, and the
                message ends with the row, so that it is not lost.
        """
        text = json.dumps(row, allow_nan=False)
        size = os.fstat(self._fd).st_size
        try:
            self._write(text.encode() + b"\n")
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise ServefitError(
                f"{self.path}: cannot be written ({error.strerror}): make room and run again; the "
                f"row that is not in it: {text}"
            ) from None
        self.rows.append(dict(row))

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]
        os.fsync(self._fd)


def has_result(row: Mapping[str, Any]) -> bool:
    """Whether a row is a result that `servefit.runs.check` takes, and need not be measured again.

    A row with more failed requests than that was written by hand, or by an older version.
    """
    sent, completed = row.get("num_requests"), row.get("completed")
    if isinstance(sent, int) and isinstance(completed, int):
        return row.get("status") == "ok" and completed >= sent * (1 - FAILED_SHARE)
    return row.get("status") == "ok"


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # the latter by nesting
        return None
    return row if isinstance(row, dict) else None
