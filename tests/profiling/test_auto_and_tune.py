"""Points chosen by what they teach, and the whole path to a verified batch cap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from servefit.advise import Advice, Curve, Infeasible, parse_slos
from servefit.errors import ServefitError
from servefit.profiling.auto import (
    AutoChooser,
    batch_candidates,
    candidates_for,
    expected_seconds,
    fit_rows,
    information,
)
from servefit.profiling.plan import Point
from servefit.profiling.server import Server
from servefit.profiling.tune import (
    MOST_VERIFICATIONS,
    Question,
    TuneChooser,
    as_clients_see,
)

SERVER = Server("facebook/opt-1.3b", engine="vllm", settings={"max_num_seqs": 64})
LENGTHS = (["64"], ["64"], ["1", "2", "4", "8", "16", "32", "64"])


def step_s(batch: float) -> float:
    """A made-up server: the seconds of one step."""
    return 0.006 + 0.0003 * batch


def row_of(point: Point, whom: str = "me", factor: float = 1.0) -> dict[str, Any]:
    """The row that such a server would give."""
    assert point.concurrency is not None
    batch = float(point.concurrency)
    e2e_s = 65 * step_s(batch) * factor
    return {
        "status": "ok",
        "point_id": point.key(whom),
        "model": "facebook/opt-1.3b",
        "gpu": "L4",
        "concurrency": point.concurrency,
        "input_tokens": 64.0,
        "output_tokens": 64.0,
        "mean_batch": batch,
        "total_tokens_per_s": batch * 128 / e2e_s,
        "e2e_mean_s": e2e_s,
        "ttft_mean_s": 2 * step_s(batch) * factor,
        "tpot_mean_s": step_s(batch) * factor,
        "e2e_with_queue_mean_s": e2e_s,
        "ttft_with_queue_mean_s": 2 * step_s(batch) * factor,
    }


def chooser(most: int = 7, wanted: float = 0.1, law: str = "step") -> AutoChooser:
    return AutoChooser(
        candidates=lambda server: candidates_for(server, *LENGTHS),
        most=most,
        law=law,
        gpu=None,
        wanted=wanted,
        say=lambda text: None,
    )


def play(choose: Any, factor: float = 1.0) -> list[dict[str, Any]]:
    """Measure what is chosen, on the made-up server, until it is enough."""
    rows: list[dict[str, Any]] = []
    while (point := choose(SERVER, "me", rows)) is not None:
        rows.append(row_of(point, factor=factor))
        assert len(rows) < 20
    return rows


def test_loads_to_choose_from_are_powers_of_two_up_to_the_seats() -> None:
    assert batch_candidates(48) == [1, 2, 4, 8, 16, 32, 48]
    points = candidates_for(SERVER, ["8"], ["8"], [])
    assert [p.concurrency for p in points] == [1, 2, 4, 8, 16, 32, 64]
    small = Server("stub", settings={"max_num_seqs": 64, "kv_capacity_tokens": 160})
    assert [p.concurrency for p in candidates_for(small, ["8"], ["8"], [])] == [1, 2, 4, 8]


def test_it_starts_with_the_smallest_and_the_largest_load() -> None:
    loads = [row["concurrency"] for row in play(chooser())]
    assert loads[:2] == [1, 64]
    assert len(loads) == len(set(loads))


def test_it_stops_when_the_fit_is_sure_or_has_what_was_asked_for() -> None:
    loose, strict = chooser(wanted=0.5), chooser(most=4, wanted=0.001)
    assert len(play(loose)) == 2
    assert "knows every candidate" in loose.stopped_because
    assert len(play(strict)) == 4
    assert "4 points are measured" in strict.stopped_because
    every = chooser(most=20, wanted=0.001)
    assert len(play(every)) == 7
    assert every.stopped_because == "no candidate is left"


def test_failed_points_are_not_chosen_again() -> None:
    choose = chooser()
    rows = [{**row_of(Point(1)), "status": "failed"}]
    chosen = [choose(SERVER, "me", rows), choose(SERVER, "me", rows), choose(SERVER, "me", rows)]
    assert [p.concurrency if p else None for p in chosen] == [1, 64, None]
    assert choose.stopped_because == "the first two points failed"


def test_points_measured_before_are_used_and_not_repeated() -> None:
    before = [row_of(p) for p in candidates_for(SERVER, *LENGTHS) if p.concurrency in (1, 64)]
    point = chooser(wanted=0.001)(SERVER, "me", before)
    assert point is not None
    assert point.concurrency not in (1, 64)


def test_information_per_second_prefers_the_unknown_and_the_quick() -> None:
    gain = information(np.array([0.02, 0.2]), 0.02)
    assert gain[0] < gain[1]
    assert gain[1] == pytest.approx(np.log(10))
    slow, fast = expected_seconds(np.array([10.0, 1.0]), np.array([8.0, 8.0]))
    assert slow == pytest.approx(fast + 2 * 9)
    assert expected_seconds(np.array(1.0), np.array(1.0)) == pytest.approx(3 + 9)


def test_a_law_without_intervals_gets_the_farthest_points() -> None:
    loads = [row["concurrency"] for row in play(chooser(most=4, law="slim"))]
    assert loads[:2] == [1, 64]
    assert loads[2] == 8  # the middle of 1..64 in logarithms


def test_a_server_launched_with_other_settings_has_points_of_its_own() -> None:
    keys = set()
    for seats in ("16", "64"):
        choose = chooser()
        choose.settings = (("max_num_seqs", seats),)
        point = choose(SERVER, "me", [])
        assert point is not None
        keys.add(point.key("me"))
    assert len(keys) == 2


def test_lengths_that_the_servers_cache_cannot_hold_once_are_refused() -> None:
    small = Server("facebook/opt-1.3b", settings={"max_num_seqs": 64, "kv_capacity_tokens": 100})
    with pytest.raises(ServefitError, match="KV cache of 100 tokens: ask for shorter ones"):
        chooser()(small, "me", [])


def test_a_model_of_unknown_shape_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ServefitError, match="give --shape"):
        chooser()(Server("my-finetune"), "me", [])


def test_a_server_of_several_engines_is_refused_before_anything_is_measured() -> None:
    two = Server("facebook/opt-1.3b", settings={"max_num_seqs": 64, "data_parallel_size": 2})
    with pytest.raises(ServefitError, match="2 data-parallel engines, and a law is of one"):
        chooser()(two, "me", [])


def test_rows_without_a_mean_batch_cannot_be_fitted_and_the_remedy_is_named() -> None:
    with pytest.raises(ServefitError, match="give --max-num-seqs"):
        fit_rows([{**row_of(Point(4)), "mean_batch": None}], "step", None)


def tuner(slo: str, **how: Any) -> TuneChooser:
    return TuneChooser(chooser(**how), Question(64, 64, parse_slos([slo]), confidence=0.5))


def test_the_advised_cap_is_verified_and_keeps_the_slo() -> None:
    tune = tuner("tpot=15ms")
    rows = play(tune)
    assert isinstance(tune.answer, Advice)
    cap = tune.answer.decision.chosen.batch_cap
    assert cap == pytest.approx(30, rel=0.15)  # 6 ms + 0.3 ms x 30 = 15 ms
    last = tune.verifications[-1]
    assert last.batch_cap in [row["concurrency"] for row in rows]
    assert abs(cap / last.batch_cap - 1) <= 0.1
    assert last.broken == ()
    assert last.measured_s["tpot"] == pytest.approx(step_s(last.batch_cap))
    assert last.predicted_s["tpot"] == pytest.approx(step_s(last.batch_cap), rel=0.1)
    assert tune.verified


def test_a_broken_slo_moves_the_advice_and_is_reported() -> None:
    """The server turns a third slower after the fit: the verification sees it."""
    tune = tuner("tpot=15ms")
    rows: list[dict[str, Any]] = []
    while (point := tune(SERVER, "me", rows)) is not None:
        slower = 1.35 if tune.answer is not None else 1.0
        rows.append(row_of(point, factor=slower))
    assert tune.verifications[0].broken == ("TPOT <= 15.0 ms",)
    assert len(tune.verifications) == MOST_VERIFICATIONS
    assert isinstance(tune.answer, Advice)
    assert tune.answer.decision.chosen.batch_cap < tune.verifications[0].batch_cap


def test_a_cliff_that_no_law_follows_ends_at_a_load_that_kept_the_slo() -> None:
    """40 % slower from 16 to 63 in flight."""
    tune = tuner("tpot=14ms", most=2)
    rows: list[dict[str, Any]] = []
    while (point := tune(SERVER, "me", rows)) is not None:
        assert point.concurrency is not None
        rows.append(row_of(point, factor=1.4 if 16 <= point.concurrency < 64 else 1.0))
    assert tune.verifications[0].broken == ("TPOT <= 14.0 ms",)
    assert tune.verified
    assert isinstance(tune.answer, Advice)
    assert 8 <= tune.answer.decision.chosen.batch_cap < 16


def test_an_slo_is_held_against_what_clients_see() -> None:
    """In service E2E is as predicted; HTTP and the queue take half a second more."""
    tune = tuner("e2e=1s")
    rows: list[dict[str, Any]] = []
    while (point := tune(SERVER, "me", rows)) is not None:
        row = row_of(point)
        rows.append(row | {"e2e_with_queue_mean_s": row["e2e_mean_s"] + 0.5})
    assert isinstance(tune.answer, Advice)
    chosen = tune.answer.decision.chosen
    assert 65 * step_s(chosen.batch_cap) + 0.5 == pytest.approx(1, rel=0.1)
    assert chosen.latency_s["e2e"] == pytest.approx(65 * step_s(chosen.batch_cap) + 0.5, rel=0.02)
    assert tune.verified


def test_a_relative_slo_is_a_multiple_of_what_clients_see() -> None:
    tune = tuner("e2e=2x@1")
    rows: list[dict[str, Any]] = []
    while (point := tune(SERVER, "me", rows)) is not None:
        row = row_of(point)
        rows.append(row | {"e2e_with_queue_mean_s": row["e2e_mean_s"] + 0.5})
    assert isinstance(tune.answer, Advice)
    (slo,) = tune.answer.objective.slos
    assert slo.limit_s == pytest.approx(2 * (65 * step_s(1) + 0.5), rel=0.01)


def test_latencies_between_measured_loads_take_what_was_missed_around_them() -> None:
    ones = np.ones(7)
    curve = Curve(
        cap=2 ** np.arange(7),
        batch=2.0 ** np.arange(7),
        total_tokens_per_s=ones,
        latency_s=dict.fromkeys(("e2e", "ttft", "tpot"), ones),
        latency_bound_s=dict.fromkeys(("e2e", "ttft", "tpot"), 1.1 * ones),
        throughput_bound=ones,
        input_tokens=64,
        output_tokens=64,
        single_tokens_per_s=1.0,
    )
    rows = [
        {"concurrency": 2, "e2e_with_queue_mean_s": 1.2, "tpot_mean_s": None},
        {"concurrency": 8, "e2e_with_queue_mean_s": 1.4, "tpot_mean_s": None},
    ]
    seen = as_clients_see(curve, rows)
    assert seen.latency_s["e2e"] == pytest.approx([1.2, 1.2, 1.3, 1.4, 1.4, 1.4, 1.4])
    assert seen.latency_bound_s["e2e"] == pytest.approx(seen.latency_s["e2e"] + 0.1)
    assert seen.latency_s["tpot"] == pytest.approx(ones)


def test_a_load_that_was_measured_to_keep_the_slo_needs_no_margin() -> None:
    """With all but certainty asked for, no predicted cap will do."""
    question = Question(64, 64, parse_slos(["tpot=6.4ms"]), confidence=0.999999)
    tune = TuneChooser(chooser(most=2), question)
    play(tune)
    assert isinstance(tune.answer, Advice)
    assert tune.answer.decision.chosen.batch_cap == 1
    assert tune.verified


def test_a_multiple_of_a_latency_beyond_the_curve_is_refused() -> None:
    with pytest.raises(ServefitError, match="reference point is unknown"):
        play(tuner("e2e=2x@1000000"))


def test_an_engine_without_flags_of_its_own_is_told() -> None:
    said: list[str] = []
    tune = tuner("tpot=15ms", most=2)
    tune.say = said.append
    server = replace(SERVER, engine="tgi")
    rows: list[dict[str, Any]] = []
    while (point := tune(server, "me", rows)) is not None:
        rows.append(row_of(point))
    assert "no flags of tgi are known: those printed are vLLM's" in said


def test_an_impossible_slo_is_said_without_a_verification() -> None:
    tune = tuner("tpot=1ms")
    play(tune)
    assert isinstance(tune.answer, Infeasible)
    assert tune.verifications == []


def test_no_cap_above_the_servers_own_is_advised() -> None:
    tune = tuner("tpot=1s", wanted=0.5)
    play(tune)
    assert isinstance(tune.answer, Advice)
    assert tune.answer.decision.chosen.batch_cap == 64
    assert "the server's own cap" in tune.answer.decision.bounded_by
    assert tune.verified


def test_after_the_last_verification_the_largest_load_that_kept_every_slo_is_advised() -> None:
    """The server turns slower with every verification."""
    tune = tuner("tpot=15ms")
    rows: list[dict[str, Any]] = []
    while (point := tune(SERVER, "me", rows)) is not None:
        advised = tune.answer is not None
        rows.append(row_of(point, factor=2.0 ** (len(tune.verifications) + advised)))
    kept = [row["concurrency"] for row in rows if row["tpot_mean_s"] <= 0.015]
    assert isinstance(tune.answer, Advice)
    assert tune.answer.decision.chosen.batch_cap == tune.largest_kept() == max(kept)
    assert tune.verified
