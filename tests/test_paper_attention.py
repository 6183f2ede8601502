"""Table I of the paper (arXiv 2607.29575): Mistral-7B's attention kernel at the last step."""

from __future__ import annotations

import pytest

from servefit.dtypes import bytes_per_number
from servefit.models import get_model

#: (B, IL, OL), active context A, arithmetic intensity, TFLOP/s, % of DRAM bandwidth.
TABLE_1 = (
    ((4, 256, 256), 2_048, 3.95, 1.79, 28.0),
    ((34, 256, 256), 17_408, 3.87, 4.25, 67.9),
    ((258, 256, 256), 132_096, 3.96, 5.89, 91.9),
    ((4, 2048, 256), 9_216, 3.79, 3.27, 53.2),
    ((4, 16384, 256), 66_560, 3.97, 5.61, 87.2),
    ((4, 256, 2048), 9_216, 3.79, 3.24, 52.8),
    ((4, 256, 16384), 66_560, 3.97, 5.61, 87.3),
)


@pytest.mark.parametrize(("point", "context", "intensity", "tflops", "dram_pct"), TABLE_1)
def test_table_1(
    point: tuple[int, int, int], context: int, intensity: float, tflops: float, dram_pct: float
) -> None:
    batch, input_tokens, output_tokens = point
    assert batch * (input_tokens + output_tokens) == context
    # Reading at 1.62e12 B/s while computing at the printed rate and intensity.
    assert 100 * tflops / (intensity * 1.62) == pytest.approx(dram_pct, abs=0.15)


def test_arithmetic_intensity_of_decode_attention_is_twice_the_group_size_over_kv_bytes() -> None:
    model = get_model("mistralai/Mistral-7B-v0.1")
    (group,) = model.attention
    size = bytes_per_number(model.kv_cache_dtype)
    intensity = group.decode_flops_per_pair / (group.kv_numbers_per_token * size)
    assert intensity == (group.num_query_heads / group.num_kv_heads) * (2 / size) == 4
    # The measured ones lie a little below: queries and outputs are read and written too.
    assert all(0.94 * intensity < row[2] < intensity for row in TABLE_1)
