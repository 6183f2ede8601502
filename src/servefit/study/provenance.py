"""What a study was run on and with: enough to run it again."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

import servefit
from servefit.laws.support import fingerprint
from servefit.study.bench import Bench


@dataclass(frozen=True)
class Provenance:
    """Settings, data and versions of a study.

    Attributes:
        study: the TOML text.
        options: how rows were selected and given to laws.
        runs: SHA-256 of each file by its name.
        rows: rows studied.
        observations: SHA-256 of the rows as laws see them, whatever their order.
        versions: of servefit and of what it computed and drew with.
    """

    study: str
    options: Mapping[str, object]
    runs: Mapping[str, str]
    rows: int
    observations: str
    versions: Mapping[str, str]


def provenance_of(
    bench: Bench, study_text: str, files: Sequence[str], options: Mapping[str, object]
) -> Provenance:
    """What identifies a study, its data and its tools.

    Args:
        bench: the rows studied.
        study_text: the declaration.
        files: the tables that were read; ``-`` is standard input, whose bytes are gone.
        options: of the command line.
    """
    everything = np.ones(bench.table.frame.height, dtype=bool)
    tools = ("numpy", "scipy", "polars", "altair", "vl-convert-python")
    return Provenance(
        study=study_text,
        options=options,
        runs={Path(name).name: _sha256(name) for name in files},
        rows=bench.table.frame.height,
        observations=fingerprint(bench.observe(everything).observations),
        versions={
            "servefit": servefit.__version__,
            "python": platform.python_version(),
            **{tool: found for tool in tools if (found := _version(tool)) is not None},
        },
    )


def _sha256(name: str) -> str:
    if name == "-":
        return "not known, it came from standard input"
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
