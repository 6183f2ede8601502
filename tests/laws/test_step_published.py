"""The step law on published measurements: every bar of docs/accuracy.md, pinned."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.accuracy import decisions
from benchmarks.accuracy.settings import Setting, error_pct, score, settings

from servefit.evaluation import Score
from servefit.laws.step import StepLaw

#: Error (MAPE, %) and measurements inside the 90 % interval, as docs/accuracy.md has them.
FOUND = {
    "zero point": (2.59, 85),
    "same curve": (2.45, 60),
    "output length": (1.95, 28),
    "model": (3.15, 10),
    "two points, OPT-1.3B": (2.58, 24),
    "two points, OPT-2.7B": (2.05, 26),
    "two points, Llama-2-7B": (1.19, 27),
    "ShareGPT": (4.31, 15),
    "caps only": (1.98, 27),
    "decode steps": (3.82, 1280),
    "mixed steps, even": (4.98, 239),
    "mixed steps, odd": (5.70, 233),
    "static, TP": (5.61, 15),
    "static, 70B": (3.68, 20),
    "static, GPU": (6.35, 20),
    "static, Mistral": (28.21, 11),
}
IN_TABLE = [s for s in settings() if s.in_table]


@pytest.fixture(scope="module")
def scores(servefit_data: Path) -> dict[str, Score]:
    return {s.name: score(s, StepLaw()) for s in IN_TABLE}


def test_every_setting_is_pinned() -> None:
    assert set(FOUND) == {s.name for s in IN_TABLE}


@pytest.mark.parametrize("setting", IN_TABLE, ids=lambda s: s.name)
def test_the_error_is_as_published_and_within_its_bar(
    scores: dict[str, Score], setting: Setting
) -> None:
    found = error_pct(scores[setting.name])
    assert found == pytest.approx(FOUND[setting.name][0], abs=0.06)
    assert setting.bar is None or found <= setting.bar


@pytest.mark.parametrize("setting", IN_TABLE, ids=lambda s: s.name)
def test_intervals_cover_as_published(scores: dict[str, Score], setting: Setting) -> None:
    coverage = scores[setting.name].coverage
    assert coverage is not None
    count = FOUND[setting.name][1]
    assert abs(coverage.count - count) <= max(1, 0.01 * coverage.of)
    assert coverage.count >= coverage.low or setting.explained


def test_intervals_are_neither_too_narrow_nor_too_wide_on_average(
    scores: dict[str, Score],
) -> None:
    found = [scores[s.name].coverage for s in IN_TABLE if s.bar is not None]
    mean = sum(c.pct for c in found if c is not None) / len(found)
    assert 85 <= mean <= 97


def test_two_points_a_model_find_the_largest_batch_within_the_slo(servefit_data: Path) -> None:
    found = decisions.choices(StepLaw())
    assert [round(c.measured, 1) for c in found] == [264.9, 175.9, 166.6, 111.1, 105.7, 97.5]
    assert all(abs(c.error_pct) < 5 for c in found)
    assert sum(c.violated for c in found) == 0
