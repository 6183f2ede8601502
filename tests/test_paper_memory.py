"""The memory arithmetic of the paper (arXiv 2607.29575), to the digits that it prints."""

from __future__ import annotations

import pytest

from servefit.memory import GIB, Reservation, kv_memory
from servefit.models import get_model

#: Fig. 13: model, nominal parameters, batch cap, KV GiB, saved GiB.
FIGURE_13 = (
    ("facebook/opt-350m", 0.35e9, 128, 1.523, 55.425),
    ("facebook/opt-1.3b", 1.3e9, 256, 6.094, 49.085),
    ("facebook/opt-2.7b", 2.7e9, 128, 5.078, 47.493),
)
#: Fig. 12, right: batch cap -> GiB saved against the largest profiled batch, 512.
FIGURE_12_TOP = {256: 16.2, 192: 20.3, 128: 24.4, 96: 26.4, 64: 28.4, 48: 29.5, 32: 30.5}
FIGURE_12_BOTTOM = {128: 36.1, 64: 42.2, 32: 45.2}


@pytest.mark.parametrize(("name", "parameters", "cap", "kv_gib", "saved_gib"), FIGURE_13)
def test_figure_13_follows_from_130_tokens_and_nominal_parameter_counts(
    name: str, parameters: float, cap: int, kv_gib: float, saved_gib: float
) -> None:
    reservation = Reservation(
        gpu_memory_bytes=64 * GIB, utilization=0.9, weight_bytes=2 * parameters, other_bytes=0
    )
    memory = kv_memory(get_model(name), 2 + 128, reservation=reservation)
    freed = memory.freed_bytes(cap)
    assert freed is not None
    assert memory.needed_bytes(cap) / GIB == pytest.approx(kv_gib, abs=5e-4)
    assert freed / GIB == pytest.approx(saved_gib, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "output_tokens", "saved"),
    [
        ("facebook/opt-6.7b", 128, FIGURE_12_TOP),
        ("facebook/opt-1.3b", 512, FIGURE_12_BOTTOM),
    ],
)
def test_figure_12_saves_what_512_requests_would_hold_more(
    name: str, output_tokens: int, saved: dict[int, float]
) -> None:
    memory = kv_memory(get_model(name), 2 + output_tokens)
    for cap, gib in saved.items():
        more = memory.needed_bytes(512) - memory.needed_bytes(cap)
        assert more / GIB == pytest.approx(gib, abs=0.05 + 1e-9), cap
    assert memory.needed_bytes(512) / GIB == pytest.approx(
        {128: 32.5, 512: 48.1875}[output_tokens], abs=1e-9
    )


def test_decimal_gigabytes_would_miss_figure_13() -> None:
    memory = kv_memory(get_model("facebook/opt-1.3b"), 130)
    assert memory.needed_bytes(256) / 1e9 != pytest.approx(6.094, abs=0.05)
