from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.advise import Curve, Decision, Infeasible, Limit, Objective, Slo, decide
from servefit.advise.curve import LATENCIES
from servefit.advise.decision import END, PEAK, Rule
from servefit.errors import ServefitError

from .conftest import make_curve

CAPS = [1, 2, 4, 8, 16]
#: T(B) = 160 B / (B + 15), T(1) = 10; E2E = B / T.
SATURATING = make_curve(
    CAPS,
    [160 * b / (b + 15) for b in CAPS],
    single=10.0,
    e2e=[(b + 15) / 160 for b in CAPS],
    tpot=[0.001 * b for b in CAPS],
)
rules = st.sampled_from(["efficiency", "tolerance"])


def chosen(answer: Decision | Infeasible) -> Decision:
    assert isinstance(answer, Decision), answer
    return answer


def refused(answer: Decision | Infeasible) -> Infeasible:
    assert isinstance(answer, Infeasible)
    assert "\n" not in answer.message
    return answer


def test_the_slo_bounds_the_batch() -> None:
    answer = chosen(decide(SATURATING, Objective((Slo("tpot", 0.005),), "efficiency", 0.0)))
    assert answer.chosen.batch_cap == 4
    assert answer.bounded_by == ("SLO TPOT <= 5.00 ms",)


def test_a_limit_that_is_reached_exactly_is_met() -> None:
    answer = chosen(decide(SATURATING, Objective((Slo("tpot", 0.004),), "efficiency", 0.0)))
    assert answer.chosen.batch_cap == 4


def test_efficiency_bounds_the_batch() -> None:
    # T(B) / (B T(1)) = 16 / (B + 15): 0.696 at 8 and 0.516 at 16.
    answer = chosen(decide(SATURATING, Objective((), "efficiency", 0.6)))
    assert answer.chosen.batch_cap == 8
    assert answer.bounded_by == ("efficiency",)
    assert answer.chosen.efficiency == pytest.approx(16 / 23)


def test_tolerance_bounds_the_batch() -> None:
    # T is 10, 18.8, 33.7, 55.7, 82.6: half of the largest is first passed at 8.
    answer = chosen(decide(SATURATING, Objective((), "tolerance", 0.5)))
    assert answer.chosen.batch_cap == 8
    assert answer.bounded_by == ("tolerance",)


def test_kv_capacity_bounds_the_batch_inside_and_at_the_end_of_the_candidates() -> None:
    for largest in (4, 16):
        limit = Limit("KV capacity", largest, "add memory")
        answer = chosen(decide(SATURATING, Objective((), "efficiency", 0.0), [limit]))
        assert answer.chosen.batch_cap == largest
        assert answer.bounded_by == ("KV capacity",)


def test_of_two_limits_of_one_name_the_tighter_holds() -> None:
    limits = [Limit("KV capacity", 2, ""), Limit("KV capacity", 8, "")]
    for order in (limits, limits[::-1]):
        answer = chosen(decide(SATURATING, Objective((), "efficiency", 0.0), order))
        assert answer.chosen.batch_cap == 2


def test_the_candidates_end_where_nothing_else_bounds() -> None:
    assert chosen(decide(SATURATING, Objective((), "efficiency", 0.0))).bounded_by == (END,)


def test_a_peak_is_bounded_by_nothing() -> None:
    curve = make_curve([1, 2, 4, 8], [10, 20, 19, 18], single=10.0)
    for rule in ("efficiency", "tolerance"):
        answer = chosen(decide(curve, Objective((), rule, 0.0)))
        assert answer.chosen.batch_cap == 2
        assert answer.bounded_by == (PEAK,)


def test_alternatives_are_neighbours_half_and_double_with_their_trade() -> None:
    caps = list(range(1, 17))
    curve = make_curve(caps, [float(b) for b in caps], tpot=[0.001 * b for b in caps])
    answer = chosen(decide(curve, Objective((Slo("tpot", 0.0065),), "efficiency", 0.0)))
    assert answer.chosen.batch_cap == 6
    by_cap = {a.candidate.batch_cap: a for a in answer.alternatives}
    assert list(by_cap) == [3, 5, 7, 12]
    assert by_cap[3].throughput_change == pytest.approx(-0.5)
    assert by_cap[12].latency_change["tpot"] == pytest.approx(1.0)
    assert by_cap[5].breaks == ()
    assert by_cap[7].breaks == ("SLO TPOT <= 6.50 ms",)
    assert math.isnan(by_cap[7].latency_change["ttft"])


def test_the_slo_is_checked_on_the_bound_and_the_point_estimate_is_kept() -> None:
    curve = make_curve(CAPS, CAPS, tpot=[0.001 * b for b in CAPS], margin=1.5, confidence=0.9)
    objective = Objective((Slo("tpot", 0.008),), "efficiency", 0.0)
    careful = chosen(decide(curve, objective)).chosen
    assert (careful.batch_cap, careful.latency_s["tpot"]) == (4, 0.004)
    assert careful.latency_bound_s["tpot"] == pytest.approx(0.006)
    assert chosen(decide(curve.at_point_estimate(), objective)).chosen.batch_cap == 8


def test_an_impossible_slo_says_what_would_do() -> None:
    answer = refused(decide(SATURATING, Objective((Slo("tpot", 0.0005),))))
    assert answer.constraint == "SLO TPOT <= 500 µs"
    assert "batch 1 comes nearest and needs TPOT >= 1.00 ms" in answer.message


def test_slos_that_fail_only_together_name_the_nearest_compromise() -> None:
    curve = make_curve([8, 16], [8, 16], e2e=[4.0, 2.0], tpot=[0.01, 0.02])
    answer = refused(decide(curve, Objective((Slo("e2e", 3.0), Slo("tpot", 0.015)))))
    # Either misses by a third: the first of the two is named.
    assert "batch 8 comes nearest and needs E2E >= 4.00 s" in answer.message
    assert "add smaller candidates" in answer.message


def test_memory_fails_before_the_slo() -> None:
    limit = Limit("KV capacity", 0, "use --tensor-parallel-size 2")
    answer = refused(decide(SATURATING, Objective((Slo("tpot", 1e-9),)), [limit]))
    assert answer.constraint == "KV capacity"
    assert "tensor-parallel-size 2" in answer.message


def test_efficiency_fails_last_and_names_the_epsilon_that_would_do() -> None:
    curve = make_curve([8, 16], [40, 64], single=10.0, tpot=[0.008, 0.016])
    answer = refused(decide(curve, Objective((Slo("tpot", 1.0),), "efficiency", 0.6)))
    assert answer.constraint == "efficiency"
    assert "the best is 0.5 at batch 8" in answer.message


def test_an_unknown_latency_under_an_slo_is_refused_or_infeasible_but_never_chosen() -> None:
    with pytest.raises(ServefitError, match="TTFT is unknown at every candidate"):
        decide(SATURATING, Objective((Slo("ttft", 1.0),)))
    curve = make_curve(CAPS, CAPS, tpot=[np.nan, 0.002, 0.004, np.nan, np.nan])
    answer = chosen(decide(curve, Objective((Slo("tpot", 1.0),), "efficiency", 0.0)))
    assert answer.chosen.batch_cap == 4
    only_unknown = refused(
        decide(curve, Objective((Slo("tpot", 1.0),)), [Limit("KV capacity", 1, "")])
    )
    assert "unknown at every candidate that fits" in only_unknown.message


def test_tpot_of_a_single_token_does_not_exist() -> None:
    curve = replace(make_curve([1, 2], [1, 2], e2e=[1, 1]), output_tokens=1.0)
    with pytest.raises(ServefitError, match="does not exist with one output token"):
        decide(curve, Objective((Slo("tpot", 1.0),)))


def test_the_efficiency_rule_demands_t1_and_the_tolerance_rule_does_not() -> None:
    curve = make_curve(CAPS, CAPS, single=math.nan)
    with pytest.raises(ServefitError, match=r"needs T\(1\)"):
        decide(curve, Objective((), "efficiency"))
    assert chosen(decide(curve, Objective((), "tolerance"))).chosen.batch_cap == 16


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, math.nan])
def test_epsilon_is_a_share(epsilon: float) -> None:
    with pytest.raises(ServefitError, match="epsilon"):
        decide(SATURATING, Objective((), "tolerance", epsilon))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    caps = sorted(draw(st.lists(st.integers(1, 500), min_size=1, max_size=10, unique=True)))

    def column(low: float, high: float) -> list[float]:
        value = st.one_of(st.floats(low, high), st.just(math.nan))
        return draw(st.lists(value, min_size=len(caps), max_size=len(caps)))

    return make_curve(
        caps,
        column(1, 1e4),
        single=draw(st.floats(0.1, 100)),
        e2e=column(0.1, 10),
        tpot=column(1e-3, 1),
        margin=draw(st.floats(1, 2)),
    )


def limits_of(draw_limit: int | None) -> list[Limit]:
    return [] if draw_limit is None else [Limit("KV capacity", draw_limit, "add memory")]


@given(curves(), rules, st.floats(0, 0.9), st.floats(0.05, 12), st.none() | st.integers(0, 500))
def test_what_is_recommended_is_known_and_breaks_nothing(
    curve: Curve, rule: Rule, epsilon: float, limit_s: float, largest: int | None
) -> None:
    slo = Slo("e2e", limit_s)
    try:
        answer = decide(curve, Objective((slo,), rule, epsilon), limits_of(largest))
    except ServefitError:
        assert np.isnan(curve.latency_s["e2e"]).all()
        return
    if isinstance(answer, Infeasible):
        assert answer.message
        assert "nan" not in answer.message
        return
    best = answer.chosen
    assert math.isfinite(best.total_tokens_per_s)
    assert best.latency_bound_s["e2e"] <= limit_s
    assert largest is None or best.batch_cap <= largest
    assert rule == "tolerance" or best.efficiency > epsilon
    assert answer.bounded_by


@given(curves(), rules, st.floats(0, 0.9), st.floats(0.05, 12), st.floats(1, 3))
def test_a_looser_slo_never_loses_feasibility_nor_throughput_beyond_the_tolerance(
    curve: Curve, rule: Rule, epsilon: float, limit_s: float, looser: float
) -> None:
    if np.isnan(curve.latency_s["e2e"]).all():
        return
    strict, loose = (
        decide(curve, Objective((Slo("e2e", s),), rule, epsilon))
        for s in (limit_s, limit_s * looser)
    )
    if isinstance(strict, Infeasible):
        return
    assert isinstance(loose, Decision)
    kept = 1.0 if rule == "efficiency" else 1 - epsilon
    assert loose.chosen.total_tokens_per_s >= kept * strict.chosen.total_tokens_per_s


def test_every_latency_has_a_name_that_curves_know() -> None:
    assert set(SATURATING.latency_s) == set(LATENCIES)
