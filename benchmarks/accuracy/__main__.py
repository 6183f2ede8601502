"""Write ``docs/accuracy.md`` and its figures from the published measurements.

SERVEFIT_DATA names the folder that holds ``data/``. Takes some minutes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.accuracy import report

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> int:
    """The command; returns the exit status: 1 where a bar is not met."""
    folder = os.environ.get("SERVEFIT_DATA")
    if not folder or not (Path(folder) / "data").is_dir():
        print("accuracy: set SERVEFIT_DATA to the folder that holds data/", file=sys.stderr)
        return 2
    missed = report.write(DOCS)
    for line in missed:
        print(f"accuracy: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
