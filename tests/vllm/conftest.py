"""One model and one server for all tests: starting vLLM takes about a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.tiny import serving, write_model

#: The server's batch cap, small enough for a queue to grow.
SEATS = 16


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("vllm") / "tiny-opt")


@pytest.fixture(scope="session")
def url(model: Path) -> Iterator[str]:
    log = model.parent / "server.log"
    with serving(model, log, "--max-num-seqs", str(SEATS)) as address:
        yield address
