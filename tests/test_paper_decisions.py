"""Fig. 12 and Table V of the paper (arXiv 2607.29575), and the rule that they follow.

The paper publishes no curve, so the one here is a construction: T(B) proportional to B / (B + B0),
hence E2E(B) = B (IL + OL) / T(B) proportional to B + B0, with the SLO a multiple m of a measured
E2E(32) that lies by a stated share above the curve's own. B0 = 58 serves both maps; the measured
reference is 27 % above the predicted one on the top map and 6 % on the bottom one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from servefit.advise import Decision, Infeasible, Objective, Slo, decide, measured_curve
from servefit.advise.decision import Rule

B0 = 58.0
SLO_MULTIPLES = (3.0, 2.0, 1.5, 1.25, 1.0)
EPSILONS = (0.05, 0.1, 0.2, 0.3)

#: OPT-6.7B, IL = 2, OL = 128.
TOP = {
    "caps": (32, 48, 64, 96, 128, 192, 256, 512),
    "lengths": (2, 128),
    "reference_above": 0.27,
    "cells": (
        (256, 192, 128, 96),
        (128, 96, 96, 64),
        (96, 96, 64, 48),
        (64, 64, 48, 48),
        (48, 48, 48, 32),
    ),
}
#: OPT-1.3B, IL = 2, OL = 512.
BOTTOM = {
    "caps": (1, 32, 64, 128, 512),
    "lengths": (2, 512),
    "reference_above": 0.06,
    "cells": (
        (128, 128, 128, 64),
        (128, 128, 128, 64),
        (64, 64, 64, 64),
        (32, 32, 32, 32),
        (32, 32, 32, 32),
    ),
}
#: Throughput kept, % of the profiled peak, as printed in Fig. 12 by batch cap.
RETAINED_TOP = {256: 76.4, 192: 63.3, 128: 49.3, 96: 41.8, 64: 29.1, 48: 24.0, 32: 17.0}
RETAINED_BOTTOM = {128: 75.9, 64: 57.0, 32: 37.3}


def cell(figure: dict, multiple: float, epsilon: float, rule: Rule, b0: float = B0) -> int | None:
    """The cap that a rule picks for one cell of a heat map."""
    caps = np.array(figure["caps"], dtype=float)
    tokens = sum(figure["lengths"])
    reference_s = (1 + figure["reference_above"]) * (32 + b0) * tokens
    curve = measured_curve(
        cap=caps,
        batch=caps,
        total_tokens_per_s=caps / (caps + b0),
        latency_s={"e2e": (caps + b0) * tokens},
        input_tokens=[figure["lengths"][0]],
        output_tokens=[figure["lengths"][1]],
        single_tokens_per_s=1 / (1 + b0),
    )
    objective = Objective((Slo("e2e", multiple * reference_s),), rule, epsilon)
    decision = decide(curve, objective)
    return decision.chosen.batch_cap if isinstance(decision, Decision) else None


def matches(figure: dict, rule: Rule, b0: float = B0) -> int:
    return sum(
        cell(figure, multiple, epsilon, rule, b0) == wanted
        for multiple, row in zip(SLO_MULTIPLES, figure["cells"], strict=True)
        for epsilon, wanted in zip(EPSILONS, row, strict=True)
    )


@pytest.mark.parametrize("figure", [TOP, BOTTOM], ids=["OPT-6.7B", "OL-512"])
def test_the_tolerance_rule_gives_every_cell_of_figure_12(figure: dict) -> None:
    assert matches(figure, "tolerance") == 20


def test_equation_13_gives_at_most_12_of_the_20_cells_of_the_top_map() -> None:
    counts = [
        matches(TOP | {"reference_above": above}, "efficiency", b0)
        for b0 in (25, 40, 58, 90, 150)
        for above in (0.18, 0.27, 0.38, 0.56)
    ]
    assert max(counts) == 12


def test_no_curve_of_falling_efficiency_gives_the_top_map_under_equation_13() -> None:
    # At epsilon = 0.3 and 3x the map picks 96: eff(96) > 0.3, so eff(48) > 0.3 as well. At 1x it
    # picks 32 although 48 meets the SLO there (it is picked at smaller epsilon) and has more
    # throughput.
    at_3x, at_1x = TOP["cells"][0], TOP["cells"][4]
    assert at_3x[3] == 96
    assert 48 in at_1x[:3]
    assert at_1x[3] == 32
    assert RETAINED_TOP[48] > RETAINED_TOP[32]


def test_what_figure_12_retains_grows_with_the_batch() -> None:
    for retained in (RETAINED_TOP, RETAINED_BOTTOM):
        by_cap = [retained[cap] for cap in sorted(retained)]
        assert by_cap == sorted(by_cap)


@pytest.mark.parametrize(
    ("retained", "slim", "full", "variation_pct"),
    [
        (RETAINED_BOTTOM, 32, 64, 34.6),
        (RETAINED_BOTTOM, 64, 64, 0.0),
        (RETAINED_TOP, 192, 128, -28.4),
        (RETAINED_TOP, 96, 128, 15.1),
    ],
)
def test_table_5_variations_follow_from_figure_12(
    retained: dict[int, float], slim: int, full: int, variation_pct: float
) -> None:
    variation = 100 * (1 - retained[slim] / retained[full])
    # Both throughputs are printed to 0.05 %: the quotient is known to that.
    rounding = 100 * 0.05 * (1 / retained[slim] + 1 / retained[full])
    assert variation == pytest.approx(variation_pct, abs=0.05 + rounding)


def test_table_5_full_profile_decisions_are_the_tolerance_rule_at_1_5x() -> None:
    for retained, caps, full in (
        (RETAINED_TOP, (32, 48, 64, 96, 128, 192, 256), 128),
        (RETAINED_BOTTOM, (32, 64, 128), 64),
    ):
        decision = full_profile(retained, caps)
        assert decision.chosen.batch_cap == full


@pytest.mark.parametrize(
    ("retained", "cap", "excess_pct"),
    [(RETAINED_TOP, 192, 7.4), (RETAINED_TOP, 96, None), (RETAINED_BOTTOM, 64, None)],
)
def test_table_5_violations_of_the_slo_follow_from_figure_12(
    retained: dict[int, float], cap: int, excess_pct: float | None
) -> None:
    # E2E is proportional to B / T(B). The paper prints 6.9 %, half a point below what its own
    # throughputs give: rounding explains 0.4 of it, so its E2E is not exactly B (IL + OL) / T.
    ratio = (cap / retained[cap]) / (32 / retained[32])
    excess = 100 * (ratio / 1.5 - 1)
    if excess_pct is None:
        assert excess < 0
    else:
        assert excess == pytest.approx(excess_pct, abs=0.05)
        assert excess == pytest.approx(6.9, abs=0.6)


def full_profile(retained: dict[int, float], caps: tuple[int, ...]) -> Decision:
    """Full-profile BCA on the printed throughputs, SLO 1.5 x E2E(32), epsilon = 0.1."""
    throughput: npt.NDArray[np.float64] = np.array([retained[c] for c in caps])
    e2e = np.array(caps) / throughput
    curve = measured_curve(
        cap=caps,
        batch=caps,
        total_tokens_per_s=throughput,
        latency_s={"e2e": e2e},
        input_tokens=[1],
        output_tokens=[1],
    )
    slo = Slo("e2e", 1.5 * float(e2e[caps.index(32)]))
    decision = decide(curve, Objective((slo,), "tolerance", 0.1))
    assert not isinstance(decision, Infeasible)
    return decision
