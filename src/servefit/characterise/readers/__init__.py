"""Files of profilers, told apart by their content."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from servefit.characterise.classify import KernelTable
from servefit.characterise.profile import Profile
from servefit.characterise.readers import ncu, nsys, pytorch
from servefit.errors import ServefitError

#: A file's first bytes tell its kind.
SQLITE = b"SQLite format 3\x00"
GZIP = b"\x1f\x8b"


def read_profile(path: str | Path, table: KernelTable) -> Profile:
    """Read a file of Nsight Compute (CSV), Nsight Systems (CSV, sqlite) or PyTorch (JSON, gzip).

    Args:
        path: the file.
        table: tells kernels' classes.

    Raises:
        ServefitError: the file cannot be read, is of no known kind, or is malformed.
    """
    try:
        return _read(path, str(path), table)
    except ServefitError as error:
        # Names from a broken file may hold anything: still one line.
        raise ServefitError(" ".join(str(error).split())) from None


def _read(path: str | Path, where: str, table: KernelTable) -> Profile:
    try:
        with open(path, "rb") as file:
            head = file.read(16)
        if head.startswith(SQLITE):
            return nsys.read_sqlite(where, table)
        data = Path(path).read_bytes()
        if head.startswith(GZIP):
            data = gzip.decompress(data)
    except OSError as error:
        raise ServefitError(f"{where}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise ServefitError(f"{where}: is a broken gzip file: {error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ServefitError(
            f"{where}: is no text, gzip or sqlite: export it first (`ncu --import F --csv`, "
            "`nsys export --type sqlite F`)"
        ) from None
    if text.lstrip()[:1] in ("{", "["):
        return pytorch.read(text, where, table)
    if nsys.is_summary(text):
        return nsys.read_csv(text, where, table)
    if ncu.is_csv(text):
        return ncu.read(text, where, table)
    raise ServefitError(
        f"{where}: is no profile known here: Nsight Compute CSV (--csv), Nsight Systems "
        "cuda_gpu_kern_sum CSV or sqlite export, or a PyTorch profiler trace"
    )
