"""From rows to observations."""

from __future__ import annotations

import polars as pl
import pytest

from servefit.observations import observe

ROW = {
    "model": "meta-llama/Llama-2-7b-hf",
    "gpu": "mine",
    "input_tokens": 100.0,
    "output_tokens": 50.0,
    "mean_batch": 4.0,
    "total_tokens_per_s": 1000.0,
    "peak_flops_per_s": 3e12,
    "memory_bandwidth_bytes_per_s": 2e11,
}


@pytest.mark.parametrize("dtype", [None, "auto", "float32", "bfloat16"])
def test_measured_peaks_are_those_of_the_format_that_ran(dtype: str | None) -> None:
    frame = pl.DataFrame([{**ROW, "dtype": dtype}], schema_overrides={"dtype": pl.String})
    points = observe(frame).observations.points
    assert points.hardware[0].peak_flops(points.models[0].weight_dtype) == 3e12
