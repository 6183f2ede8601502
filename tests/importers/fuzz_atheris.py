"""Coverage-guided fuzzing of every importer; only servefit's own errors may come out.

Not part of the suite, as it runs for as long as it is let:

    pip install atheris
    python tests/importers/fuzz_atheris.py -max_total_time=300 tests/importers/fixtures
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["servefit.importers"]):
    from servefit.errors import ServefitError
    from servefit.importers import import_files, parse_settings, to_table
    from servefit.importers.formats import (  # noqa: F401  (instrumented)
        aiperf,
        guidellm,
        prometheus,
        serving_console,
        sglang_log,
        vllm_log,
        vllm_serve,
    )

SETTINGS = parse_settings(["model=acme/one", "max_num_seqs=64", "tensor_parallel_size=1"])
FILE = Path(tempfile.mkdtemp()) / "input"


def one_input(data: bytes) -> None:
    """Import one input."""
    FILE.write_bytes(data)
    try:
        result = import_files([FILE], SETTINGS)
        if result.runs:
            to_table(result.runs)
    except ServefitError:
        pass


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
