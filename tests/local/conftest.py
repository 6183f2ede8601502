"""A decoder small enough to run in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from servefit.local.decoder import opt_config
from servefit.local.engine import LocalEngine, local_engine


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("opt-2l-64d") / "config.json"
    path.write_text(json.dumps(opt_config(2, 64, vocab_size=256)))
    return path


@pytest.fixture
def engine(tiny_config: Path) -> Iterator[LocalEngine]:
    pytest.importorskip("ctranslate2")
    with local_engine(tiny_config, threads=1) as engine:
        yield engine
