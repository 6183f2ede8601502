"""The tables in the documentation are those of the catalogues."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from servefit.models.families import FAMILIES

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("document", ["models.md", "hardware.md"])
def test_the_tables_are_up_to_date(document: str) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "catalogue_docs.py"))
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    assert script["rendered"](document) == text, "run scripts/catalogue_docs.py"


def test_every_known_family_is_documented() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [family for family in FAMILIES if f"`{family}`" not in text] == []
