"""Shared fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Wall time says nothing on a busy machine; in CI the same examples are tried every time.
settings.register_profile("servefit", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("servefit")


@pytest.fixture(scope="session")
def servefit_data() -> Path:
    """The folder of published measurements, named by ``SERVEFIT_DATA``."""
    folder = os.environ.get("SERVEFIT_DATA")
    if not folder:
        pytest.skip("SERVEFIT_DATA is not set: published measurements are not at hand")
    path = Path(folder)
    if not (path / "data").is_dir():
        pytest.fail(f"SERVEFIT_DATA={folder}: holds no folder data/")
    return path
