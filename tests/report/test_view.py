from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from servefit import api, laws
from servefit.advise import Advice, Slo, Terms, get_engine, parse_slos
from servefit.advise.words import replica_sentences
from servefit.laws.intervals import intervals
from servefit.laws.step.why import why
from servefit.memory import GIB
from servefit.points import Serving
from servefit.report.charts import CAUSE_COLOURS, PART_COLOURS
from servefit.report.figures import figures, interval_name, main_figure, place, shown_latencies
from servefit.report.fit import COVERAGES, goodness, parameter_rows
from servefit.report.series import REACH, mark_rows, series
from servefit.report.view import Question, View, drawn_caps, look

FIT = api.as_calibration("prior:step")


def asked(
    slo: str = "tpot=20ms",
    confidence: float = 0.9,
    tensor_parallel_size: int = 1,
    serving: Serving | None = None,
    output_tokens: int = 390,
    **changes: object,
) -> View:
    points = api.points_of(
        FIT, model="facebook/opt-1.3b", gpu="H100", input_tokens=250, output_tokens=output_tokens,
        batch=1, tensor_parallel_size=tensor_parallel_size, serving=serving,
    )  # fmt: skip
    slos = parse_slos([slo]) if slo else []
    return look(FIT, Question(points, slos, confidence=confidence, **changes))  # type: ignore[arg-type]


def test_the_drawn_curve_is_what_the_law_predicts_at_the_caps() -> None:
    view = asked()
    rows = series(view)["curve"]
    caps = np.array([row["cap"] for row in rows], dtype=float)
    batch = np.array([row["batch"] for row in rows])
    np.testing.assert_array_equal(batch, caps)
    answer = laws.predict(FIT, view.question.points.with_batch(caps))
    np.testing.assert_allclose([r["tokens_per_s"] for r in rows], answer.total_tokens_per_s)
    np.testing.assert_allclose([r["tpot_ms"] for r in rows], answer.tpot_s * 1e3)
    np.testing.assert_allclose([r["e2e_s"] for r in rows], answer.e2e_s)


def test_the_band_is_the_central_interval_whose_end_the_slo_is_checked_on() -> None:
    view = asked(confidence=0.95)
    rows = series(view)["curve"]
    at = view.question.points.with_batch([float(row["cap"]) for row in rows])
    ranges = intervals(laws.predict(FIT, at), laws.spread(FIT, at), 0.9)
    assert ranges is not None
    for column, name, factor in (
        ("tpot_ms", "tpot_s", 1e3),
        ("tokens_per_s", "total_tokens_per_s", 1.0),
    ):
        low, high = ranges[name]
        np.testing.assert_allclose([r[f"{column}_low"] for r in rows], low * factor)
        np.testing.assert_allclose([r[f"{column}_high"] for r in rows], high * factor)


def test_the_marks_are_the_cap_the_memory_limit_and_the_knee() -> None:
    view = asked()
    marks = {row["kind"]: row for row in mark_rows(view)}
    assert isinstance(view.answer, Advice)
    assert marks["cap"]["batch"] == view.answer.decision.chosen.batch_cap == view.cap
    memory = view.problem.deployment.memory
    assert memory is not None
    assert marks["limit"]["batch"] == memory.capacity_requests
    at_one = why(FIT, view.question.points.with_batch(1.0))
    assert marks["knee"]["batch"] == pytest.approx(float(at_one.knee_batch))


def test_marks_in_one_place_share_a_label() -> None:
    view = asked("e2e=1h", rule="tolerance", epsilon=0.0)
    (mark,) = [row for row in mark_rows(view) if "cap" in row["label"]]
    assert mark["label"].startswith(f"cap {view.cap} · KV full: {view.cap}")


def test_labels_of_marks_side_by_side_stand_at_different_heights() -> None:
    places = []
    for slo in ("tpot=9ms", "tpot=11ms", "tpot=11.5ms", "tpot=12ms", "tpot=20ms"):
        rows = mark_rows(asked(slo))
        places += [(a, b) for i, a in enumerate(rows) for b in rows[:i]]
    near = [(a, b) for a, b in places if 1 / 1.35 < a["batch"] / b["batch"] < 1.35]
    assert near
    assert all(a["level"] != b["level"] for a, b in near)


def test_the_causes_of_a_step_sum_to_its_time() -> None:
    view = asked()
    rows = series(view)["steps"]
    batches = sorted({row["batch"] for row in rows})
    sums = [sum(r["ms"] for r in rows if r["batch"] == b) for b in batches]
    steps = why(FIT, view.question.points.with_batch(batches)).decode_step_s * 1e3
    np.testing.assert_allclose(sums, steps, rtol=1e-9)


def test_the_parts_of_memory_sum_to_that_of_the_gpu() -> None:
    view = asked()
    parts = {row["part"]: row["gib"] for row in series(view)["memory"]}
    hardware = view.question.points.hardware[0]
    assert hardware.memory_bytes is not None
    assert sum(parts.values()) * GIB == pytest.approx(hardware.memory_bytes)
    assert isinstance(view.answer, Advice)
    assert parts["KV cache at the cap"] * GIB == pytest.approx(view.answer.kv_bytes)
    assert parts["freed"] * GIB == pytest.approx(view.answer.freed_bytes)


def test_the_memory_bar_says_nothing_is_freed_where_the_advice_says_none() -> None:
    taken = asked(terms=Terms(engine=get_engine("llama.cpp")))
    assert isinstance(taken.answer, Advice)
    assert taken.answer.freed_bytes is None
    parts = [row["part"] for row in series(taken)["memory"]]
    assert parts == ["weights", "other", "KV cache at the cap", "not taken"]
    none = asked("tpot=1us")
    assert none.cap is None
    rows = series(none)["memory"]
    left = "left for the KV cache"
    assert [r["part"] for r in rows] == ["weights", "other", left, "not given to the engine"]
    memory = none.problem.deployment.memory
    assert memory is not None
    assert memory.reservation is not None
    held = {row["part"]: row["gib"] for row in rows}
    assert held[left] * GIB == pytest.approx(memory.reservation.kv_bytes)
    for view in (taken, none):
        text = figures(view, None, None)["memory"].text
        assert "freed" not in text


def test_an_impossible_slo_still_shows_the_curve_and_says_why() -> None:
    view = asked("tpot=1us")
    assert view.cap is None
    assert view.sentence.startswith("No batch cap: no candidate meets SLO TPOT <= 1.00 µs")
    data = series(view)
    assert len(data["curve"]) > 50
    assert "cap" not in {row["kind"] for row in data["marks"]}


def test_the_slo_is_in_the_unit_of_its_axis() -> None:
    view = asked("e2e=2s")
    assert series(view)["slos"] == [{"e2e_s": 2.0, "label": "SLO 2 s", "latency": "e2e"}]
    assert view.problem.slos == (Slo("e2e", 2.0),)


@pytest.mark.parametrize("largest", [1, 2, 100, 20_000])
def test_drawn_caps_hold_both_ends_and_the_recommended_one(largest: int) -> None:
    caps = np.arange(1, largest + 1)
    extra = min(77, largest)
    drawn = caps[drawn_caps(caps, (extra,))]
    assert {1, largest, extra} <= set(drawn.tolist())
    assert drawn.size <= 123


def test_coverage_counts_what_lies_within_and_errors_are_signed() -> None:
    import polars as pl

    from servefit.observations import observe

    points = api.points_of(
        FIT, model="facebook/opt-1.3b", gpu="H100", input_tokens=250, output_tokens=390,
        batch=[1.0, 8.0, 32.0],
    )  # fmt: skip
    truth = laws.predict(FIT, points).total_tokens_per_s
    frame = pl.DataFrame(
        {
            "model": "facebook/opt-1.3b",
            "gpu": "H100",
            "input_tokens": 250.0,
            "output_tokens": 390.0,
            "mean_batch": [1.0, 8.0, 32.0],
            "total_tokens_per_s": truth * np.array([1.0, 1.0, 5.0]),
        }
    )
    fit = goodness(FIT, observe(frame).observations)
    assert [row["error_pct"] for row in fit.rows] == pytest.approx([0, 0, -80], abs=1e-6)
    assert fit.mape_pct == pytest.approx(80 / 3)
    assert [(c.confidence, c.count, c.of) for c in fit.coverage] == [(c, 2, 3) for c in COVERAGES]


def test_parameters_carry_their_interval_and_their_prior() -> None:
    rows = {row["name"]: row for row in parameter_rows(FIT)}
    row = rows["kv_bandwidth_efficiency"]
    assert row["value"] == 0.88
    low, high = row["allowed"]
    assert low == pytest.approx(0.88 * np.exp(-1.645 * 0.12))
    assert high == pytest.approx(0.88 * np.exp(1.645 * 0.12))


def test_every_part_and_cause_has_its_colour(calibration: Path) -> None:
    view = asked()
    assert {row["part"] for row in series(view)["memory"]} <= PART_COLOURS.keys()
    for fit in (FIT, api.as_calibration(calibration)):
        answer = laws.predict(fit, view.question.points)
        assert answer.terms_s.keys() <= CAUSE_COLOURS.keys()


@pytest.mark.parametrize(
    ("slo", "output_tokens", "latencies"),
    [
        ("e2e=1h,tpot=9ms", 390, ["tpot", "e2e"]),
        ("tpot=1s,ttft=1us", 390, ["ttft", "tpot"]),
        ("tpot=9ms,tpot=8ms", 390, ["tpot"]),
        ("ttft=1s,tpot=1s,e2e=4s", 390, ["e2e", "ttft", "tpot"]),
        ("", 390, ["tpot"]),
        ("", 1, ["e2e"]),
    ],
)
def test_the_main_figure_shows_the_latency_that_binds_and_every_other_under_an_slo(
    slo: str, output_tokens: int, latencies: list[str]
) -> None:
    view = asked(slo, output_tokens=output_tokens)
    assert shown_latencies(view) == latencies
    panels = main_figure(view, series(view)).to_dict()["concat"]
    headings = {
        "tpot": "Time per output token",
        "ttft": "Time to first",
        "e2e": "Time of a request",
    }
    assert panels[0]["title"]["text"] == "Throughput"
    for panel, latency in zip(panels[1:], latencies, strict=True):
        assert panel["title"]["text"].startswith(headings[latency])


def test_titles_count_every_gpu() -> None:
    assert place(asked()) == "facebook/opt-1.3b on H100"
    assert place(asked(tensor_parallel_size=2)) == "facebook/opt-1.3b on 2 x H100"
    deep = asked(tensor_parallel_size=4, serving=Serving.of(pipeline_parallel_size=2))
    assert place(deep) == "facebook/opt-1.3b on 8 x H100 (TP 4, PP 2)"


@pytest.mark.parametrize(
    ("confidence", "said", "interval"),
    [(0.9, "90%", "80 %"), (0.995, "99.5%", "99 %"), (0.99999, "99.999%", "99.998 %")],
)
def test_no_confidence_is_rounded_to_certainty(confidence: float, said: str, interval: str) -> None:
    view = asked(slo="tpot=20ms", confidence=confidence, rate_per_s=50.0)
    assert view.sentence.endswith(f"; SLOs hold with {said} confidence.")
    assert interval_name(view) == f"{interval} interval"
    assert isinstance(view.answer, Advice)
    assert f"with {said} confidence" in replica_sentences(view.answer)[0]
    impossible = asked(slo="tpot=1us", confidence=confidence)
    assert f"at {said} confidence: batch 1 comes nearest" in impossible.sentence


def batch_within(view: View) -> float:
    """The largest batch that keeps the SLO on TPOT."""
    curve, slo = view.problem.curve, view.problem.slos[0]
    return float(curve.batch[curve.latency_s["tpot"] <= slo.limit_s].max())


def test_curves_end_where_nothing_that_matters_is_near() -> None:
    far = asked("tpot=9ms", terms=Terms(kv_capacity_tokens=5e6))
    data = series(far)
    fits = float(np.max(far.problem.curve.batch))
    assert far.cap is not None
    end = max(row["batch"] for row in data["curve"])
    assert far.knee_batch is not None
    assert 7 * far.cap < end <= REACH * max(far.cap, batch_within(far)) < fits
    assert end > far.knee_batch
    for name in ("steps", "marks", "extent"):
        assert max(row["batch"] for row in data[name]) <= end * 1.1, name
    near = asked("tpot=40ms")
    assert max(row["batch"] for row in series(near)["curve"]) == np.max(near.problem.curve.batch)
    assert any("KV full" in row["label"] for row in series(near)["marks"])


def test_candidates_beyond_all_that_matters_are_drawn() -> None:
    view = asked("tpot=0.1ms", terms=Terms(candidates=(512, 1024)))
    assert view.cap is None
    data = series(view)
    assert [row["cap"] for row in data["curve"]] == [512, 1024]
    assert len(data["extent"]) == 2


def test_the_extent_spans_all_that_is_drawn() -> None:
    data = series(asked())
    first, last = data["extent"]
    assert first["batch"] == min(row["batch"] for row in data["curve"])
    assert last["batch"] == max(row["batch"] for row in data["curve"])
    for column in ("tokens_per_s", "tpot_ms", "ttft_ms", "e2e_s"):
        tops = [row[f"{column}_high"] for row in data["curve"]]
        assert first[column] == last[column] >= max(tops)
    at_end = [row["ms"] for row in data["steps"] if row["batch"] == last["batch"]]
    assert last["ms"] == pytest.approx(sum(at_end))
