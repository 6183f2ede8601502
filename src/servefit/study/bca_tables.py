"""Decisions as tables: Table V, Fig. 12 and Fig. 13."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from servefit.advise import ENGINES
from servefit.advise.decision import Rule
from servefit.calibration import Calibration
from servefit.memory import (
    ASSUMED_OTHER_BYTES,
    DEFAULT_UTILIZATION,
    GIB,
    KvMemory,
    Reservation,
    kv_memory,
)
from servefit.study import published
from servefit.study.bca import RULES, Grown, Measured, fully_trained, outcome
from servefit.study.settings import BcaPlan, Target
from servefit.study.tables import Column, Table


def decisions_table(plan: BcaPlan, grown: Sequence[Grown], problems: Sequence[str]) -> Table:
    """Table V, for both rules."""
    rows, notes = [], list(problems)
    for each in grown:
        if each.predicted is None:
            notes.append(f"{each.measured.label}, {each.law}: {each.reason}")
            continue
        for rule in RULES:
            objective = each.measured.objective(plan.slo_multiple, rule, plan.epsilon)
            result = outcome(each.measured, each.predicted, objective)
            rows.append(
                {
                    "target": each.measured.label,
                    "trained_on": _added(each),
                    "points": each.num_points,
                    "law": each.law,
                    "rule": rule,
                    "cap": result.cap,
                    "full_profile_cap": result.full_cap,
                    "throughput_lost_pct": pct(result.lost),
                    "slo_violation_pct": pct(result.violation),
                }
            )
    reference = f"the cap nearest to {plan.reference_batch:g}"
    notes = [
        f"SLO: {plan.slo_multiple:g} x the measured E2E at {reference}; epsilon = "
        f"{plan.epsilon:g}; candidates are the measured caps",
        "The paper prints, at its own lengths and under the tolerance rule: OL-512 from 5, 8, 13 "
        "points 34.6, 0, 0 % lost; OPT-6.7B from 9, 18, 29 points -28.4 (SLO violated by 6.9), "
        "15.1, 15.1 %",
        *notes,
    ]
    columns = (
        Column("target", "target"),
        Column("trained_on", "trained on"),
        Column("points", "points", 0),
        Column("law", "law"),
        Column("rule", "rule"),
        Column("cap", "cap", 0, "none feasible"),
        Column("full_profile_cap", "full profile", 0, "none feasible"),
        Column("throughput_lost_pct", "throughput lost, %", 1),
        Column("slo_violation_pct", "SLO violated by, %", 1),
    )
    title = "Decisions from few curves against full profiles (Table V)"
    return Table("table_5_decisions", title, columns, tuple(rows), tuple(notes))


def _added(each: Grown) -> str:
    last = each.trained_on[-1]
    return last if len(each.trained_on) == 1 else f"and {last}"


def pct(share: float | None) -> float | None:
    """A share in percent."""
    return None if share is None else 100 * share


def sensitivity_table(plan: BcaPlan, grown: Sequence[Grown]) -> Table:
    """Fig. 12 as a table: what each SLO multiple and epsilon retains and frees."""
    rows = [
        {
            "target": each.measured.label,
            "law": each.law,
            "rule": rule,
            "slo_multiple": multiple,
            "epsilon": epsilon,
            **_cell(each, rule, multiple, epsilon),
            **_paper_cell(each, rule, multiple, epsilon),
        }
        for law in plan.laws
        for each in fully_trained(grown, law)
        for rule in RULES
        for multiple in plan.slo_multiples
        for epsilon in plan.epsilons
    ]
    columns = (
        Column("target", "target"),
        Column("law", "law"),
        Column("rule", "rule"),
        Column("slo_multiple", "SLO, x E2E at reference", 2),
        Column("epsilon", "epsilon", 2),
        Column("cap", "cap", 0, "none feasible"),
        Column("full_profile_cap", "full profile", 0, "none feasible"),
        Column("retained_pct", "measured throughput kept, % of peak", 1),
        Column("saved_gib", "KV cache saved, GiB", 2),
        Column("slo_violation_pct", "SLO violated by, %", 1),
        Column("paper_cap", "paper: cap", 0, ""),
        Column("paper_retained_pct", "paper: kept, %", 1, ""),
        Column("paper_saved_gib", "paper: saved, GiB", 1, ""),
    )
    notes = (
        "Saved: KV cache of the largest measured cap less that of the chosen one, all requests at "
        "their end, 2 L D_kv b (IL + OL) each",
        *_paper_maps(plan),
        published.OTHER_RUNS,
    )
    title = "Sensitivity to the SLO and to epsilon (Fig. 12)"
    return Table("figure_12_sensitivity", title, columns, tuple(rows), notes, long=True)


def _cell(each: Grown, rule: Rule, multiple: float, epsilon: float) -> dict[str, Any]:
    if each.predicted is None:
        return {}
    curve = each.measured.curve
    objective = each.measured.objective(multiple, rule, epsilon)
    result = outcome(each.measured, each.predicted, objective)
    if result.cap is None:
        return {"full_profile_cap": result.full_cap}
    kept = curve.total_tokens_per_s[curve.cap == result.cap][0] / np.nanmax(
        curve.total_tokens_per_s
    )
    memory = memory_of(each.measured)
    saved = memory.needed_bytes(int(curve.cap.max())) - memory.needed_bytes(result.cap)
    return {
        "cap": result.cap,
        "full_profile_cap": result.full_cap,
        "retained_pct": float(100 * kept),
        "saved_gib": saved / GIB,
        "slo_violation_pct": pct(result.violation),
    }


def _map_of(target: Target) -> published.HeatMap | None:
    """The paper's map for a target."""
    return next((f for f in published.FIGURE_12 if f.target == target.paper), None)


def _paper_cell(each: Grown, rule: Rule, multiple: float, epsilon: float) -> dict[str, Any]:
    """What the paper prints for the cell; its maps are of SLIM and the tolerance rule."""
    printed = _map_of(each.target)
    if printed is None or (each.law, rule) != ("slim", "tolerance"):
        return {}
    cap = printed.cap(multiple, epsilon)
    if cap is None:
        return {}
    return {
        "paper_cap": cap,
        "paper_retained_pct": printed.retained_pct[cap],
        "paper_saved_gib": printed.saved_gib[cap],
    }


def _paper_maps(plan: BcaPlan) -> list[str]:
    """Which curve of the paper stands beside each target."""
    return [
        f"Beside {target.name}: the paper's {target.paper}, of {printed.model.split('/')[1]} with "
        f"{printed.input_tokens} input and {printed.output_tokens} output tokens and caps up to "
        f"{max(printed.caps)}; what is saved is in proportion to both"
        for target in plan.target
        if (printed := _map_of(target)) is not None
    ]


def memory_of(measured: Measured) -> KvMemory:
    """KV memory of the curve's requests on one GPU.

    With what the engine reserves by default: a share of the GPU's memory, where that is known and
    the engine is one that does so, or is not said.
    """
    points, curve = measured.points, measured.curve
    parallel = int(points.tensor_parallel_size[0])
    total = points.hardware[0].memory_bytes
    reservation = None
    reserving = [name for name, engine in ENGINES.items() if engine.by_default]
    if total is not None and (measured.engine is None or measured.engine.lower() in reserving):
        weights = measured.model.weight_bytes / parallel
        reservation = Reservation(total, DEFAULT_UTILIZATION, weights, ASSUMED_OTHER_BYTES)
    return kv_memory(
        measured.model,
        curve.tokens_per_request,
        tensor_parallel_size=parallel,
        reservation=reservation,
    )


def memory_table(
    plan: BcaPlan, curves: Mapping[str, Measured], calibrations: Mapping[str, Calibration]
) -> Table:
    """Fig. 13 as a table: how a GPU's memory splits at the advised cap of each curve."""
    rows, notes = [], []
    for law, calibration in calibrations.items():
        for label, measured in curves.items():
            objective = measured.objective(plan.slo_multiple, "tolerance", plan.epsilon)
            result = outcome(measured, measured.predicted(calibration), objective)
            memory = memory_of(measured)
            held = memory.reservation
            if result.cap is None or held is None:
                why = "no cap is feasible"
                if held is None:
                    why = "the GPU's memory, or what the engine reserves of it, is unknown"
                notes.append(f"{label}, {law}: {why}")
                continue
            freed = memory.freed_bytes(result.cap)
            rows.append(
                {
                    "curve": label,
                    "law": law,
                    "cap": result.cap,
                    "weights_gib": held.weight_bytes / GIB,
                    "kv_gib": memory.needed_bytes(result.cap) / GIB,
                    "freed_gib": None if freed is None else freed / GIB,
                    "other_gib": held.other_bytes / GIB,
                    "outside_gib": held.gpu_memory_bytes * (1 - held.utilization) / GIB,
                    **(_paper_memory(measured.model.name) if law == "slim" else {}),
                }
            )
    notes.insert(
        0,
        f"Cap: tolerance rule, SLO {plan.slo_multiple:g} x the measured E2E at the cap nearest to "
        f"{plan.reference_batch:g}, epsilon {plan.epsilon:g}, from a fit to all rows. The engine "
        f"takes {DEFAULT_UTILIZATION:.0%} of the GPU; other memory is assumed to be "
        f"{ASSUMED_OTHER_BYTES / GIB:g} GiB (the paper counts none)",
    )
    notes += [*_paper_split({m.model.name for m in curves.values()}), published.OTHER_RUNS]
    columns = (
        Column("curve", "curve"),
        Column("law", "law"),
        Column("cap", "cap", 0),
        Column("weights_gib", "weights, GiB", 2),
        Column("kv_gib", "KV cache needed, GiB", 2),
        Column("freed_gib", "freed, GiB", 2),
        Column("other_gib", "other, GiB", 2),
        Column("outside_gib", "outside the engine, GiB", 2),
        Column("paper_cap", "paper: cap", 0, ""),
        Column("paper_kv_gib", "paper: KV cache, GiB", 2, ""),
        Column("paper_freed_gib", "paper: freed, GiB", 2, ""),
    )
    title = "One GPU's memory at the advised cap (Fig. 13)"
    return Table("figure_13_memory", title, columns, tuple(rows), tuple(notes))


def _paper_memory(model: str) -> dict[str, Any]:
    """What the paper prints of a model in Fig. 13."""
    for name, _, cap, kv_gib, freed_gib in published.FIGURE_13:
        if name == model:
            return {"paper_cap": cap, "paper_kv_gib": kv_gib, "paper_freed_gib": freed_gib}
    return {}


def _paper_split(models: Container[str]) -> list[str]:
    """Of which requests the paper's numbers are, and those of models that these runs lack."""
    others = [
        f"{name.split('/')[1]} at cap {cap} {kv_gib} GiB of KV cache and {freed_gib} GiB freed"
        for name, _, cap, kv_gib, freed_gib in published.FIGURE_13
        if name not in models
    ]
    notes = [
        f"The paper's KV cache is that of {published.FIGURE_13_TOKENS} tokens a request: at one "
        "cap it is in proportion to the lengths"
    ]
    return notes + [f"The paper prints besides: {'; '.join(others)}"] * bool(others)
