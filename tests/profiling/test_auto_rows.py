"""Choosing points beside rows that lack columns, written by hand or by another version."""

from __future__ import annotations

import math

import pytest

from servefit.errors import ServefitError
from servefit.profiling.auto import _distance, fit_rows
from servefit.profiling.plan import Point


def test_rows_without_a_mean_batch_are_not_fitted() -> None:
    with pytest.raises(ServefitError, match="no row has a mean batch"):
        fit_rows([{"status": "ok", "point_id": "x"}], "step", None)


def test_rows_without_a_load_or_lengths_are_nowhere_near() -> None:
    point = Point(4, input_length="8", output_length="8")
    whole = {"concurrency": 2, "input_tokens": 8, "output_tokens": 8}
    lacking = [{}, {"concurrency": 4}, {**whole, "input_tokens": None}]
    assert _distance(point, [*lacking, whole]) == pytest.approx(math.log(2))
    assert _distance(point, lacking) == math.inf
