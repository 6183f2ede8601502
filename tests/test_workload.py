from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.observations import observe
from servefit.workload import Workload, count_within, parse_workload, total_at

LENGTHS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 400)), min_size=1, max_size=12)


@given(LENGTHS)
def test_the_context_is_that_of_every_token_generated(lengths: list[tuple[int, int]]) -> None:
    contexts = [i + j for i, o in lengths for j in range(1, o + 1)]
    workload = Workload.from_lengths(*zip(*lengths, strict=True))
    assert workload.mean_context_tokens == pytest.approx(np.mean(contexts))
    assert workload.context_sd_tokens == pytest.approx(np.std(contexts), abs=1e-3, rel=1e-6)
    assert workload.longest_tokens == max(i + o for i, o in lengths)


def test_equal_lengths_give_the_context_of_the_paper() -> None:
    workload = parse_workload("il=250,ol=390")
    assert workload.mean_context_tokens == 250 + 391 / 2
    assert workload.context_sd_tokens == pytest.approx(math.sqrt((390**2 - 1) / 12))
    assert (workload.context_ratio, workload.prompt_spread) == (1, 1)
    assert workload.longest_tokens == 640


def test_longer_answers_are_met_more_often() -> None:
    # 1 of 10 and 1 of 90 tokens: 90 % of the tokens belong to the second.
    workload = Workload.from_lengths([100, 500], [10, 90])
    assert workload.mean_context_tokens == pytest.approx(0.1 * 105.5 + 0.9 * 545.5)
    assert workload.context_ratio > 1.4


def test_a_server_whose_finished_requests_are_replaced_meets_that_context() -> None:
    rng = np.random.default_rng(2)
    prompts, outputs = rng.integers(10, 2000, 300), rng.geometric(1 / 120, 300)
    workload = Workload.from_lengths(prompts, outputs)
    slots = rng.integers(0, 300, 64)
    generated = np.zeros(64, dtype=int)
    seen = []
    for step in range(20_000):
        generated += 1
        if step > 2000:
            seen.append(prompts[slots] + generated)
        done = generated >= outputs[slots]
        slots[done] = rng.integers(0, 300, int(done.sum()))
        generated[done] = 0
    assert np.mean(seen) == pytest.approx(workload.mean_context_tokens, rel=0.02)
    assert np.std(seen) == pytest.approx(workload.context_sd_tokens, rel=0.02)


def test_moments_are_those_of_lognormal_lengths() -> None:
    rng = np.random.default_rng(0)
    cv_il, cv_ol, corr = 0.8, 0.6, 0.3
    w = math.log1p(corr * cv_il * cv_ol)
    covariance = [[math.log1p(cv_il**2), w], [w, math.log1p(cv_ol**2)]]
    logs = rng.multivariate_normal([0, 0], covariance, 1_000_000)
    lengths = np.exp(logs) * [300, 200] / np.sqrt(1 + np.square([cv_il, cv_ol]))
    drawn = Workload.from_lengths(lengths[:, 0], np.maximum(lengths[:, 1], 1))
    given = parse_workload("il=300,ol=200,cv_il=0.8,cv_ol=0.6,corr=0.3")
    for name in ("input_tokens", "mean_context_tokens", "context_sd_tokens", "prompt_spread"):
        assert getattr(given, name) == pytest.approx(getattr(drawn, name), rel=0.01), name
    assert given.longest_tokens is None


@given(st.floats(0, 2), st.floats(0, 2))
def test_spread_only_lengthens_the_context(cv_il: float, cv_ol: float) -> None:
    even = Workload.from_moments(100, 200)
    mixed = Workload.from_moments(100, 200, cv_input=cv_il, cv_output=cv_ol)
    assert mixed.mean_context_tokens >= even.mean_context_tokens * (1 - 1e-12)
    # Prompts alone make no difference to the mean, answers do.
    expected = 100 + (200 * (1 + cv_ol**2) + 1) / 2
    assert mixed.mean_context_tokens == pytest.approx(expected)
    assert mixed.prompt_spread == pytest.approx(1 + cv_il**2)


@given(st.floats(10, 1e6), st.floats(1, 1e3), st.floats(0, 1e3), st.floats(0.5, 0.999))
def test_as_many_requests_fit_as_fill_the_cache(
    capacity: float, mean: float, sd: float, probability: float
) -> None:
    count = count_within(capacity, mean, sd, probability)
    assert total_at(count, mean, sd, probability) == pytest.approx(capacity)
    assert count <= capacity / mean * (1 + 1e-9)


def test_what_fits_is_exceeded_as_often_as_asked() -> None:
    rng = np.random.default_rng(1)
    contexts = rng.gamma(2.0, 250.0, size=(20_000, 100))
    held = np.sort(contexts.sum(axis=1))
    mean, sd = 500.0, math.sqrt(2) * 250
    assert total_at(100, mean, sd, 0.95) == pytest.approx(held[int(0.95 * len(held))], rel=0.01)


def test_a_trace_is_read_by_its_column_names(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("\ufeffoutput_tokens,user,input_tokens\n10,a,100\n90,b,500\n0,c,7\n\n")
    workload = parse_workload(str(file))
    assert workload.input_tokens == 300
    assert workload.output_tokens == 50
    assert workload.source.endswith("2 requests, 1 without output left out")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("il=250", "il and ol"),
        ("il=250,ol=x", "'x' is not a number"),
        ("il=250,ol=0", "ol = 0: must be at least 1"),
        ("il=250,ol=10,cv_il=-1", "cv_il = -1"),
        ("il=250,ol=nan", "ol = nan"),
        ("il=250,ol=10,color=3", "'color=3' is not one of il"),
        ("il=250,ol=10,ol=11", "each given once"),
        ("il=250,ol=10,corr=0.5", "needs lengths that vary"),
        ("il=250,ol=10,cv=1,corr=-0.9", "have -0.500 to 1.000"),
        ("nowhere.csv", "cannot be read"),
    ],
)
def test_what_is_no_workload_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ServefitError, match="workload") as error:
        parse_workload(text)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "lacks the column input_tokens, output_tokens"),
        ("input_tokens,output_tokens\n", "at least one request"),
        ("input_tokens,output_tokens\n5,0\n", "at least one request"),
        ("input_tokens,output_tokens\n5,3\n5,x\n", "line 3"),
        ("input_tokens,output_tokens\n-5,3\n", "line 2"),
        ("input_tokens,output_tokens\n5\n", "line 2"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ServefitError) as error:
        parse_workload(str(file))
    assert complaint in str(error.value)


ROWS = {
    "model": ["facebook/opt-1.3b"] * 2,
    "gpu": ["H100"] * 2,
    "input_tokens": [100.0, 200.0],
    "output_tokens": [50.0, 100.0],
    "total_tokens_per_s": [1000.0, 2000.0],
}


def test_rows_keep_their_means_and_take_the_workloads_ratio() -> None:
    mix = Workload.from_moments(10, 20, cv_input=1, cv_output=2)
    points = observe(
        pl.DataFrame({**ROWS, "mean_batch": [1.0, 8.0]}), context_from=mix
    ).observations
    context = points.points.mean_context_tokens
    assert context == pytest.approx(mix.context_ratio * np.array([125.5, 250.5]))
    assert points.points.context_sd_tokens / context == pytest.approx(
        np.full(2, mix.context_sd_tokens / mix.mean_context_tokens)
    )
    with pytest.raises(ServefitError, match="static batches"):
        observe(pl.DataFrame({**ROWS, "batch": [1.0, 8.0]}), context_from=mix)


def test_a_published_trace_has_long_answers_to_short_prompts(servefit_data: Path) -> None:
    file = servefit_data / "data" / "workloads" / "azure_2023_conversation.csv"
    workload = parse_workload(str(file))
    assert workload.source.endswith("19366 requests")
    # Its lengths are anticorrelated, which outweighs the spread of the answers.
    assert 0.95 < workload.context_ratio < 1
    assert workload.prompt_spread > 1.5
