"""Lengths, arrivals, traces and plans."""

from __future__ import annotations

import itertools
import random
import statistics
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.profiling.lengths import Length, arrival_times, draw_asks, read_trace
from servefit.profiling.plan import Point, cross, in_order, read_plan
from servefit.profiling.record import Ask
from servefit.workload import parse_workload

TRACE = "arrival_s,input_tokens,output_tokens\n0.0,10,5\n1.5,20,0\n0.5,3000,2000\n2.0,30,7\n"


def test_lengths_are_fixed_uniform_or_lognormal_with_the_mean_they_name() -> None:
    assert Length("128").fixed == 128
    draws = {
        text: [Length(text).sampler(random.Random(1))() for _ in range(1)]
        for text in ("128", "uniform:10:20", "lognormal:100:0.5")
    }
    assert draws["128"] == [128]
    for text, mean in (("uniform:10:20", 15.0), ("lognormal:100:0.5", 100.0)):
        sampler = Length(text).sampler(random.Random(2))
        values = [sampler() for _ in range(20_000)]
        assert Length(text).mean == mean
        assert statistics.mean(values) == pytest.approx(mean, rel=0.02)
    spread = statistics.stdev(values) / statistics.mean(values)
    assert spread == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    "text",
    ["0", "-3", "1.5", "many", "uniform:9:3", "uniform:1", "lognormal:100:0", "nan", "1e400"],
)
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ServefitError, match="length"):
        Length(text).check()


def test_draws_are_the_same_for_the_same_seed_and_fit_the_server() -> None:
    def draw(seed: int) -> list[tuple[int, int]]:
        asks = draw_asks(
            Length("uniform:1:100"), Length("uniform:1:100"), None, max_tokens=120, seed=seed
        )
        return [(a.input_tokens, a.output_tokens) for a in itertools.islice(asks, 200)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert all(a + b <= 120 for a, b in draw(1))


def test_a_fixed_length_beyond_the_server_s_limit_is_refused() -> None:
    asks = draw_asks(Length("4000"), Length("200"), None, max_tokens=4096, seed=0)
    with pytest.raises(ServefitError, match="max_model_len 4096"):
        next(asks)


def test_arrivals_have_the_rate_and_the_spread_of_their_kind() -> None:
    constant = list(itertools.islice(arrival_times("constant", 4.0, 0), 9))
    assert constant == [i / 4 for i in range(9)]
    poisson = list(itertools.islice(arrival_times("poisson", 4.0, 0), 20_001))
    gaps = [b - a for a, b in itertools.pairwise(poisson)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.03)


def test_a_trace_is_read_by_arrival_and_says_what_it_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    rows, left_out = read_trace(path, max_tokens=4096)
    assert [(r.arrival_s, r.ask.input_tokens, r.ask.output_tokens) for r in rows] == [
        (0.0, 10, 5),
        (2.0, 30, 7),
    ]
    assert left_out == 2
    assert len(read_trace(path)[0]) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,input_tokens\n0,1\n", "output_tokens"),
        ("arrival_s,input_tokens,output_tokens\n0,1\n", "line 2"),
        ("arrival_s,input_tokens,output_tokens\nsoon,1,2\n", "line 2"),
        ("arrival_s,input_tokens,output_tokens\n0,9,0\n", "no request"),
        ("arrival_s,input_tokens,output_tokens\n0,9,1.5\n", "line 2: lengths must be whole"),
        ("arrival_s,input_tokens,output_tokens\n0,9,1\n-1,9,1\n", "line 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-99,9,1\n", "line 2: arrival '2023"),
        ("arrival_s,input_tokens,output_tokens\n0," + "9" * 200_000 + ",1\n", "line 2: field"),
        ("", "lacks the column"),
    ],
)
def test_damaged_traces_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ServefitError, match=words):
        read_trace(path)


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:50.2224670,879,55\n"
)


def test_azure_s_traces_are_read_as_they_are_published(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    for text in (AZURE, AZURE.replace("0,", "0+00:00,")):
        path.write_text(text)
        rows, left_out = read_trace(path)
        assert [row.arrival_s for row in rows] == pytest.approx([0.0, 3.541877, 4.314579], abs=1e-5)
        assert rows[1].ask == Ask(879, 55)
        assert left_out == 0
        assert parse_workload(str(path)).input_tokens == pytest.approx((374 + 396 + 879) / 3)


def test_a_trace_begins_with_its_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n1700000001.5,1,2\n1700000000.25,3,4\n")
    assert [(r.arrival_s, r.ask) for r in read_trace(path)[0]] == [
        (0.0, Ask(3, 4)),
        (1.25, Ask(1, 2)),
    ]


def test_a_plan_crosses_its_lists() -> None:
    points = read_plan(
        "points:\n"
        "  - {batch: [1, 8], input_tokens: 128, output_tokens: [64, 256]}\n"
        "  - {rate: 2.5, arrivals: [poisson, constant], trace: t.csv}\n"
        "  - {batch: 4, input_tokens: 'uniform:1:9', output_tokens: 5, repeats: 2,\n"
        "     settings: [{max_num_seqs: 16}, {max_num_seqs: 64}]}\n",
        "plan.yaml",
    )
    assert len(points) == 4 + 2 + 4
    assert points[0] == Point(concurrency=1, input_length="128", output_length="64")
    assert points[4] == Point(rate_per_s=2.5, arrivals="poisson", trace="t.csv")
    assert {p.settings for p in points[6:]} == {
        (("max_num_seqs", "16"),),
        (("max_num_seqs", "64"),),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("points: 3", "no list"),
        ("- 3", "no mapping"),
        ("- {batch: 1, color: red}", "unknown key 'color'"),
        ("- {batch: 0, input_tokens: 1, output_tokens: 1}", "batch = 0"),
        ("- {batch: 1.5, input_tokens: 1, output_tokens: 1}", "whole number"),
        ("- {batch: 1}", "no lengths"),
        ("- {input_tokens: 1, output_tokens: 1}", "no load"),
        ("- {rate: 1, arrivals: bursty, trace: x}", "arrivals 'bursty'"),
        ("- {batch: 1, arrivals: bursty, trace: x}", "arrivals 'bursty'"),
        ("- {batch: 1, arrivals: poisson, trace: x}", "arrivals poisson: only arrivals at a rate"),
        ("- {rate: 1, arrivals: trace, trace: x}", "rate = 1: arrivals trace has the trace's own"),
        ("- {batch: 1, trace: x, output_tokens: 8}", "output_tokens = 8: a trace has lengths"),
        ("- {arrivals: trace, input_tokens: 1, output_tokens: 1}", "no trace to replay"),
        ("- {batch: 1, input_tokens: 1, output_tokens: 1, settings: 5}", "settings"),
        ("- {batch: 1, input_tokens: 1, output_tokens: 1, settings: {a: []}}", "a has no value"),
        ("- {batch: 2023-13-45, input_tokens: 1, output_tokens: 1}", "is no YAML"),
        ("a: [", "is no YAML"),
    ],
)
def test_plans_with_mistakes_name_the_point_and_the_value(text: str, words: str) -> None:
    with pytest.raises(ServefitError, match=words):
        read_plan(text, "plan.yaml")


def test_listed_values_of_settings_are_crossed() -> None:
    text = "- {batch: 1, input_tokens: 1, output_tokens: 1, settings: {a: [1, 2], b: x, c: [3, 4]}}"
    settings = [dict(p.settings) for p in read_plan(text, "plan.yaml")]
    assert [(s["a"], s["b"], s["c"]) for s in settings] == [
        ("1", "x", "3"),
        ("1", "x", "4"),
        ("2", "x", "3"),
        ("2", "x", "4"),
    ]


def test_points_come_cheapest_first_within_each_server_setting() -> None:
    points = cross(
        batch=[64, 1, 8],
        input_tokens=[128],
        output_tokens=[512, 32],
        settings=[{"max_num_seqs": 64}, {"max_num_seqs": 16}],
    )
    ordered = in_order(points)
    settings = [p.settings for p in ordered]
    assert settings == sorted(settings, key=settings.index)
    for group in (ordered[:6], ordered[6:]):
        costs = [p.relative_cost for p in group]
        assert costs == sorted(costs)


def test_a_trace_is_known_by_what_it_holds(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    (point,) = cross(rate=[1], trace=[str(trace)])
    keys = []
    for text in ("arrival_s\n0", "arrival_s\n1", "arrival_s\n0"):
        trace.write_text(text)
        keys.append(point.key("me"))
    assert keys[0] == keys[2] != keys[1]


def test_a_point_keeps_its_identity_and_different_ones_differ() -> None:
    points = cross(batch=[1, 2], input_tokens=[8, 9], output_tokens=[4], repeats=2)
    keys = {p.key("model") for p in points}
    assert len(keys) == len(points) == 8
    assert points[0].key("model") == cross(batch=[1], input_tokens=[8], output_tokens=[4])[0].key(
        "model"
    )
    assert points[0].key("another") not in keys
