from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.advise.settings import ENGINES
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN
from servefit.memory import (
    ASSUMED_OTHER_BYTES,
    Reservation,
    gpus_needed,
    kv_memory,
    request_kv_bytes,
    round_up,
)

from .conftest import GIB, GPU, MODEL, make_model

#: 2 x 24 layers x 32 heads x 64 x 2 bytes.
TOKEN_BYTES = 196_608


def test_a_request_holds_its_tokens_times_the_bytes_of_one() -> None:
    assert request_kv_bytes(MODEL, 130) == 130 * TOKEN_BYTES
    assert request_kv_bytes(MODEL, 130, block_tokens=16) == 144 * TOKEN_BYTES
    assert request_kv_bytes(MODEL, 128, block_tokens=16) == 128 * TOKEN_BYTES


def test_heads_are_shared_over_ranks_but_never_less_than_one() -> None:
    few = make_model(kv_heads=4)
    one_head = request_kv_bytes(few, 100) / 4
    assert request_kv_bytes(few, 100, tensor_parallel_size=2) == 2 * one_head
    assert request_kv_bytes(few, 100, tensor_parallel_size=4) == one_head
    assert request_kv_bytes(few, 100, tensor_parallel_size=8) == one_head


def test_windowed_layers_keep_no_more_than_their_window() -> None:
    windowed = make_model(window=64)
    assert request_kv_bytes(windowed, 1000) == request_kv_bytes(windowed, 64)
    assert request_kv_bytes(windowed, 50) == 50 * TOKEN_BYTES


def test_freed_is_the_default_reservation_less_what_is_needed() -> None:
    memory = ENGINES["vllm"].memory(MODEL, GPU, 128, other_bytes=1.5 * GIB)
    held = memory.reservation
    assert held is not None
    assert held.kv_bytes == 64 * GIB * 0.9 - MODEL.weight_bytes - 1.5 * GIB
    assert memory.freed_bytes(100) == held.kv_bytes - 100 * 128 * TOKEN_BYTES
    assert memory.capacity_requests == int(held.kv_bytes // (128 * TOKEN_BYTES))
    assert not memory.other_is_assumed


def test_other_memory_is_never_silently_nothing_under_vllm() -> None:
    memory = ENGINES["vllm"].memory(MODEL, GPU, 128)
    assert memory.reservation is not None
    assert memory.reservation.other_bytes == ASSUMED_OTHER_BYTES > 0
    assert memory.other_is_assumed


def test_each_engine_reserves_in_its_own_way() -> None:
    by_engine = {
        name: engine.memory(MODEL, GPU, 128, other_bytes=None) for name, engine in ENGINES.items()
    }
    weights = MODEL.weight_bytes
    held = {name: memory.reservation for name, memory in by_engine.items()}
    assert held["sglang"] is not None
    assert held["tensorrt-llm"] is not None
    # SGLang's share is weights + KV pool; TensorRT-LLM's is of what they leave free.
    assert held["sglang"].kv_bytes == 64 * GIB * 0.9 - weights
    assert held["tensorrt-llm"].kv_bytes == pytest.approx(0.9 * (62 * GIB - weights))
    assert by_engine["llama.cpp"].freed_bytes(1) is None
    assert by_engine["llama.cpp"].capacity_requests is not None


def test_unknown_gpu_memory_bounds_nothing_and_frees_an_unknown_amount() -> None:
    memory = ENGINES["vllm"].memory(MODEL, UNKNOWN, 128)
    assert memory.capacity_requests is None
    assert memory.freed_bytes(8) is None
    assert memory.needed_bytes(8) == 8 * 128 * TOKEN_BYTES


def test_a_model_that_does_not_fit_has_no_capacity_and_needs_more_gpus() -> None:
    small = replace(GPU, memory_bytes=4.0 * GIB)
    memory = ENGINES["vllm"].memory(MODEL, small, 128)
    assert memory.capacity_requests == 0
    assert memory.reservation is not None
    # 2.4 GB of weights: a half leaves room beside 2 GiB of other memory.
    assert gpus_needed(MODEL, 128, memory.reservation) == 2
    assert gpus_needed(MODEL, 1e9, memory.reservation) is None


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"utilization": 0.0}, "in \\(0, 1\\]"),
        ({"utilization": 1.1}, "in \\(0, 1\\]"),
        ({"utilization": float("nan")}, "in \\(0, 1\\]"),
        ({"other_bytes": -1.0}, "negative"),
    ],
)
def test_impossible_memory_is_refused(given: dict[str, float], complaint: str) -> None:
    with pytest.raises(ServefitError, match=complaint):
        ENGINES["vllm"].memory(MODEL, GPU, 128, **given)


@given(st.floats(1, 1e6), st.sampled_from([1, 16, 32, 256]))
def test_rounding_up_adds_less_than_a_block(tokens: float, block: int) -> None:
    rounded = round_up(tokens, block)
    assert rounded % block == 0
    assert rounded - block < tokens <= rounded + 1e-9 * block


def test_the_rounding_of_a_mean_length_makes_no_further_block() -> None:
    assert round_up(512.0000000001, 16) == 512
    assert round_up(512.001, 16) == 528


@given(st.integers(1, 10_000), st.floats(1, 10_000))
def test_capacity_holds_and_one_more_request_does_not(cap: int, context: float) -> None:
    reservation = Reservation(64 * GIB, 0.9, 2 * GIB, GIB)
    memory = kv_memory(MODEL, context, reservation=reservation)
    capacity = memory.capacity_requests
    assert capacity is not None
    rounding = 1e-12 * reservation.kv_bytes
    assert memory.needed_bytes(capacity) <= reservation.kv_bytes + rounding
    assert memory.needed_bytes(capacity + 1) > reservation.kv_bytes - rounding
    freed = memory.freed_bytes(cap)
    assert freed is not None
    assert (freed >= 0) == (cap <= capacity)
