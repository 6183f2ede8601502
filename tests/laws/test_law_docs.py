"""The documentation of the law is the law."""

from __future__ import annotations

import re
from pathlib import Path

from servefit.laws.features import FORMULAS
from servefit.laws.step.parameters import PRIORS, UNKNOWN_PEAKS

DOCS = (Path(__file__).parents[2] / "docs" / "law.md").read_text()


def test_every_prior_is_documented_with_its_numbers() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\d.e+-]+)(?: s)? \| ([\d.e+-]+) \|", DOCS, re.MULTILINE)
    documented = {name: (float(median), float(log_sd)) for name, median, log_sd in rows}
    assert documented == {p.name: (p.median, p.log_sd) for p in (*PRIORS, *UNKNOWN_PEAKS)}


def test_every_feature_that_may_be_uncalibrated_is_documented() -> None:
    for name in FORMULAS:
        assert name.removeprefix("quantised ") in DOCS, name
