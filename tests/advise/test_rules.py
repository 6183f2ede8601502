from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from servefit.advise.rules import batching_efficiency, efficiency, tolerance

epsilons = st.floats(0, 0.99)


@dataclass(frozen=True)
class Case:
    batch: npt.NDArray[np.float64]
    throughput: npt.NDArray[np.float64]
    feasible: npt.NDArray[np.bool_]

    def shuffled(self, order: npt.NDArray[np.int64]) -> Case:
        return Case(self.batch[order], self.throughput[order], self.feasible[order])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any curve: not monotone, with ties and unknown values."""
    batch = draw(st.lists(st.integers(1, 2000), min_size=1, max_size=12, unique=True))
    size = len(batch)
    values = st.one_of(st.floats(1, 1e5), st.sampled_from([10.0, 20.0, np.nan]))
    throughput = draw(st.lists(values, min_size=size, max_size=size))
    feasible = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return Case(np.array(batch, float), np.array(throughput), np.array(feasible))


@given(cases(), epsilons, st.floats(0.1, 1e3))
def test_efficiency_is_the_smallest_argmax_over_what_is_allowed(
    case: Case, epsilon: float, single: float
) -> None:
    index = efficiency(
        case.batch, case.throughput, case.feasible, epsilon=epsilon, single_throughput=single
    )
    allowed = [
        i
        for i in range(len(case.batch))
        if case.feasible[i] and case.throughput[i] / (case.batch[i] * single) > epsilon
    ]
    if not allowed:
        assert index is None
        return
    best = max(case.throughput[i] for i in allowed)
    expected = min(case.batch[i] for i in allowed if case.throughput[i] == best)
    assert index is not None
    assert case.batch[index] == expected


@given(cases(), epsilons)
def test_tolerance_is_the_smallest_batch_near_the_feasible_maximum(
    case: Case, epsilon: float
) -> None:
    index = tolerance(case.batch, case.throughput, case.feasible, epsilon=epsilon)
    known = [i for i in range(len(case.batch)) if case.feasible[i] and case.throughput[i] > 0]
    if not known:
        assert index is None
        return
    best = max(case.throughput[i] for i in known)
    expected = min(case.batch[i] for i in known if case.throughput[i] >= (1 - epsilon) * best)
    assert index is not None
    assert case.batch[index] == expected


@given(cases(), epsilons, st.data())
def test_the_order_of_the_candidates_does_not_matter(
    case: Case, epsilon: float, data: st.DataObject
) -> None:
    order = np.array(data.draw(st.permutations(range(len(case.batch)))))
    mixed = case.shuffled(order)
    for one, other in (
        (
            tolerance(case.batch, case.throughput, case.feasible, epsilon=epsilon),
            tolerance(mixed.batch, mixed.throughput, mixed.feasible, epsilon=epsilon),
        ),
        (
            efficiency(
                case.batch, case.throughput, case.feasible, epsilon=epsilon, single_throughput=5
            ),
            efficiency(
                mixed.batch, mixed.throughput, mixed.feasible, epsilon=epsilon, single_throughput=5
            ),
        ),
    ):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert case.batch[one] == mixed.batch[other]


@given(cases(), epsilons, epsilons)
def test_a_larger_tolerance_never_picks_a_larger_batch(case: Case, a: float, b: float) -> None:
    strict, loose = (
        tolerance(case.batch, case.throughput, case.feasible, epsilon=e) for e in sorted((a, b))
    )
    if strict is not None and loose is not None:
        assert case.batch[loose] <= case.batch[strict]


@given(cases(), epsilons, epsilons)
def test_a_larger_efficiency_threshold_never_gains_throughput(
    case: Case, a: float, b: float
) -> None:
    loose, strict = (
        efficiency(case.batch, case.throughput, case.feasible, epsilon=e, single_throughput=5)
        for e in sorted((a, b))
    )
    if strict is not None:
        assert loose is not None
        assert case.throughput[strict] <= case.throughput[loose]


def test_efficiency_must_exceed_epsilon_and_not_just_reach_it() -> None:
    batch, throughput = np.array([1.0, 2.0]), np.array([10.0, 10.0 * 2 * 0.5])
    feasible = np.array([True, True])
    assert batching_efficiency(batch, throughput, 10.0)[1] == 0.5
    picked = efficiency(batch, throughput, feasible, epsilon=0.5, single_throughput=10.0)
    assert picked == 0


def test_a_hundred_thousand_candidates_take_one_pass() -> None:
    batch = np.arange(1, 100_001, dtype=float)
    throughput = batch / (batch + 50)
    everything = np.ones(batch.size, dtype=bool)
    # T(B) / (B T(1)) = 51 / (B + 50) > 0.1 up to B = 459.
    index = efficiency(batch, throughput, everything, epsilon=0.1, single_throughput=1 / 51)
    assert index is not None
    assert batch[index] == 459
    index = tolerance(batch, throughput, everything, epsilon=0.1)
    assert index is not None
    # B / (B + 50) >= 0.9 x 100000 / 100050 from B = 447.8 on.
    assert batch[index] == 448
