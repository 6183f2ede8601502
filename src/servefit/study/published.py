"""Numbers printed in the paper (arXiv 2607.29575), and the arithmetic that ties them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from servefit.advise import Decision, Objective, Slo, decide, measured_curve
from servefit.advise.decision import Rule
from servefit.memory import GIB, Reservation, kv_memory
from servefit.models import get_model
from servefit.study.tables import Column, Table

#: Why our numbers differ from the paper's before any other reason.
OTHER_RUNS = (
    "The paper's numbers are of other runs (vLLM 0.15.1, OPT 125M to 6.7B, other lengths), so a "
    "difference has that reason before any other"
)
#: Table III: setting -> law -> (throughput, E2E) MAPE in %.
TABLE_III: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "Same curve": {"slim": (15.1, 17.5), "llmvisor": (55.8, 81.2), "imai": (55.3, 42.9)},
    "Input length": {"slim": (0.7, 0.7), "llmvisor": (68.1, 255.2), "imai": (1.2, 1.2)},
    "Model": {"slim": (24.3, 16.5), "llmvisor": (141.8, 59.9), "imai": (39.9, 72.8)},
    "Output length": {"slim": (5.6, 5.5), "llmvisor": (7.7, 8.9), "imai": (38.9, 25.9)},
    "Combined": {"slim": (17.6, 13.4), "llmvisor": (95.8, 43.7), "imai": (91.7, 60.2)},
}
#: Table IV: setting -> variant -> (throughput, E2E) MAPE in %.
TABLE_IV: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "Model": {"full": (24.3, 16.5), "kv": (23.5, 20.9), "dense": (31.6, 18.9)},
    "Output length": {"full": (5.6, 5.5), "kv": (33.0, 24.8), "dense": (8.1, 8.2)},
}
#: Table V: target, trained on, points, throughput lost in %, and the caps that this implies.
TABLE_V = (
    ("OL-512", "OL-16, 32", 5, 34.6, 32, 64),
    ("OL-512", "and OL-48", 8, 0.0, 64, 64),
    ("OL-512", "and OL-64", 13, 0.0, 64, 64),
    ("OPT-6.7B", "125M", 9, -28.4, 192, 128),
    ("OPT-6.7B", "and 350M", 18, 15.1, 96, 128),
    ("OPT-6.7B", "and 1.3B", 29, 15.1, 96, 128),
)
#: Table VI: setting -> points profiled, predicted, points saved in %, time saved in %.
TABLE_VI: Mapping[str, tuple[int, int, float, float]] = {
    "Same curve": (3, 6, 66.7, 56.9),
    "Output length": (15, 5, 25.0, 59.9),
    "Model": (25, 8, 24.2, 27.2),
    "Combined": (40, 13, 24.5, 31.4),
}
#: The two averages that the abstract quotes, in %.
MEAN_REDUCTION, MEAN_TIME_SAVED = 79.3, 43.85
#: Table I (Mistral-7B, attention in the last decode step): B, IL, OL, active context tokens,
#: FLOP/byte, TFLOP/s, DRAM bandwidth in use in %.
TABLE_I = (
    (4, 256, 256, 2048, 3.95, 1.79, 28.0),
    (34, 256, 256, 17408, 3.87, 4.25, 67.9),
    (258, 256, 256, 132096, 3.96, 5.89, 91.9),
    (4, 2048, 256, 9216, 3.79, 3.27, 53.2),
    (4, 16384, 256, 66560, 3.97, 5.61, 87.2),
    (4, 256, 2048, 9216, 3.79, 3.24, 52.8),
    (4, 256, 16384, 66560, 3.97, 5.61, 87.3),
)
BANDWIDTH_BYTES_PER_S = 1.62e12


@dataclass(frozen=True)
class HeatMap:
    """One map of Fig. 12.

    Attributes:
        target: its curve, as Table V calls it.
        model, input_tokens, output_tokens: of its curve; the lengths are implied by the GiB.
        caps: candidates; ``reference_above`` is how far the measured E2E at 32 must lie above that
            of a curve T ~ B / (B + 58) for the SLO to match.
        cells: chosen cap by SLO multiple (rows) and epsilon (columns).
        retained_pct, saved_gib: printed for each cap.
    """

    target: str
    model: str
    input_tokens: int
    output_tokens: int
    caps: tuple[int, ...]
    reference_above: float
    cells: tuple[tuple[int, ...], ...]
    retained_pct: Mapping[int, float]
    saved_gib: Mapping[int, float]

    def cap(self, slo_multiple: float, epsilon: float) -> int | None:
        """The cap printed for an SLO multiple and epsilon; ``None`` where none is."""
        if slo_multiple not in SLO_MULTIPLES or epsilon not in EPSILONS:
            return None
        return self.cells[SLO_MULTIPLES.index(slo_multiple)][EPSILONS.index(epsilon)]


SLO_MULTIPLES, EPSILONS = (3.0, 2.0, 1.5, 1.25, 1.0), (0.05, 0.1, 0.2, 0.3)
FIGURE_12 = (
    HeatMap(
        "OPT-6.7B",
        "facebook/opt-6.7b",
        2,
        128,
        (32, 48, 64, 96, 128, 192, 256, 512),
        0.27,
        (
            (256, 192, 128, 96),
            (128, 96, 96, 64),
            (96, 96, 64, 48),
            (64, 64, 48, 48),
            (48, 48, 48, 32),
        ),
        {256: 76.4, 192: 63.3, 128: 49.3, 96: 41.8, 64: 29.1, 48: 24.0, 32: 17.0},
        {256: 16.2, 192: 20.3, 128: 24.4, 96: 26.4, 64: 28.4, 48: 29.5, 32: 30.5},
    ),
    HeatMap(
        "OL-512",
        "facebook/opt-1.3b",
        2,
        512,
        (1, 32, 64, 128, 512),
        0.06,
        (
            (128, 128, 128, 64),
            (128, 128, 128, 64),
            (64, 64, 64, 64),
            (32, 32, 32, 32),
            (32, 32, 32, 32),
        ),
        {128: 75.9, 64: 57.0, 32: 37.3},
        {128: 36.1, 64: 42.2, 32: 45.2},
    ),
)
#: Fig. 13, at `FIGURE_13_TOKENS` a request: model, nominal parameters, cap, GiB of KV cache and
#: saved.
FIGURE_13 = (
    ("facebook/opt-350m", 0.35e9, 128, 1.52, 55.42),
    ("facebook/opt-1.3b", 1.3e9, 256, 6.09, 49.08),
    ("facebook/opt-2.7b", 2.7e9, 128, 5.08, 47.49),
)


FIGURE_13_TOKENS = 130


@dataclass(frozen=True)
class Check:
    """A printed number and what it recomputes as.

    Attributes:
        what: the number, in words.
        printed, recomputed: in ``unit``.
        how: the arithmetic.
        tolerance: how far rounding alone may part them, or ``None`` where it cannot be said.
    """

    what: str
    printed: float
    recomputed: float
    unit: str
    how: str
    tolerance: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether they are one within rounding."""
        return abs(self.printed - self.recomputed) <= (self.tolerance or 0) + 1e-9


def reduction(law: Sequence[float], baselines: Sequence[float]) -> float:
    """1 - mean error of the law / mean error of the baselines."""
    return 1 - float(np.mean(law)) / float(np.mean(baselines))


def checks() -> list[Check]:
    """All checks, in the paper's order."""
    return [
        *_table_i(),
        *_table_iii(),
        *_table_v(),
        *_table_vi(),
        *_figure_12(),
        *_figure_13(),
    ]


def checks_table() -> Table:
    """The checks as a table."""
    rows = tuple(
        {
            "what": c.what,
            "printed": f"{c.printed:g} {c.unit}".strip(),
            "recomputed": f"{c.recomputed:.5g} {c.unit}".strip(),
            "agrees": c.agrees,
            "how": c.how,
        }
        for c in checks()
    )
    return Table(
        "published_checks",
        "The paper's printed numbers, recomputed from each other",
        (
            Column("what", "printed number"),
            Column("printed", "printed"),
            Column("recomputed", "recomputed"),
            Column("agrees", "agree"),
            Column("how", "arithmetic"),
        ),
        rows,
    )


def _table_i() -> Iterator[Check]:
    mistral = get_model("mistralai/Mistral-7B-v0.1")
    group = mistral.num_attention_heads / mistral.num_kv_heads
    for batch, il, ol, context, intensity, tflops, dram in TABLE_I:
        point = f"Table I, ({batch}, {il}, {ol})"
        yield Check(f"{point}: active context", context, batch * (il + ol), "tokens", "B (IL + OL)")
        used = tflops * 1e12 / (intensity * BANDWIDTH_BYTES_PER_S)
        yield Check(
            f"{point}: DRAM bandwidth in use",
            dram,
            100 * used,
            "%",
            "TFLOP/s / (FLOP per byte x 1.62e12 B/s)",
            0.05 + 100 * used * (0.005 / tflops + 0.005 / intensity),
        )
    measured = float(np.mean([row[4] for row in TABLE_I]))
    yield Check(
        "Table I: arithmetic intensity, mean",
        round(measured, 2),
        group * 2 / 2,
        "FLOP/byte",
        "(H_q / H_kv) (2 / bytes a number): the bound without queries and outputs",
        0.15,
    )


def _table_iii() -> Iterator[Check]:
    def mean(shift: float) -> float:
        reductions = [
            reduction(
                [e - shift for e in row["slim"]],
                [e + shift for name, pair in row.items() if name != "slim" for e in pair],
            )
            for row in TABLE_III.values()
        ]
        return 100 * float(np.mean(reductions))

    yield Check(
        "Mean reduction of error",
        MEAN_REDUCTION,
        mean(0.0),
        "%",
        "mean over settings of 1 - SLIM / mean of both baselines, throughput and E2E together; "
        f"{mean(-0.05):.1f} to {mean(0.05):.1f} within the rounding of Table III",
        0.05 + (mean(0.05) - mean(-0.05)) / 2,
    )
    for quantity, index in (("throughput", 0), ("E2E", 1)):
        parts = [(8, "Model"), (5, "Output length")]
        union = sum(n * TABLE_III[name]["slim"][index] for n, name in parts) / 13
        yield Check(
            f"Table III, Combined, SLIM {quantity}",
            TABLE_III["Combined"]["slim"][index],
            union,
            "%",
            "(8 Model + 5 Output length) / 13, were Combined the union with unchanged fits",
            0.1,
        )


def _table_v() -> Iterator[Check]:
    for target, trained, _, printed, chosen, full in TABLE_V:
        figure = next(f for f in FIGURE_12 if f.target == target)
        ratio = figure.retained_pct[chosen] / figure.retained_pct[full]
        rounding = 100 * ratio * (0.05 / figure.retained_pct[chosen]) * 2
        yield Check(
            f"Table V, {target} from {trained}: throughput lost",
            printed,
            100 * (1 - ratio),
            "%",
            f"1 - T({chosen}) / T({full}), both from Fig. 12",
            0.05 + (rounding if chosen != full else 0.0),
        )


def _table_vi() -> Iterator[Check]:
    for setting, (profiled, predicted, saved, _) in TABLE_VI.items():
        yield Check(
            f"Table VI, {setting}: points saved",
            saved,
            100 * predicted / (profiled + predicted),
            "%",
            f"{predicted} / ({profiled} + {predicted})",
            0.05,
        )
    yield Check(
        "Mean profiling time saved",
        MEAN_TIME_SAVED,
        float(np.mean([row[3] for row in TABLE_VI.values()])),
        "%",
        "mean of the four rows of Table VI",
        0.05,
    )


def _figure_12() -> Iterator[Check]:
    for figure in FIGURE_12:
        name = f"Fig. 12, {figure.model.split('/')[1]}"
        memory = kv_memory(get_model(figure.model), figure.input_tokens + figure.output_tokens)
        for cap, printed in figure.saved_gib.items():
            more = memory.needed_bytes(max(figure.caps)) - memory.needed_bytes(cap)
            yield Check(
                f"{name}: KV cache saved at cap {cap}",
                printed,
                more / GIB,
                "GiB",
                f"(512 - {cap}) x {figure.input_tokens + figure.output_tokens} tokens x KV bytes",
                0.05,
            )
        for rule in ("tolerance", "efficiency"):
            yield Check(
                f"{name}: cells that the {rule} rule gives",
                20,
                matching_cells(figure, rule),
                "of 20",
                "on the curve T ~ B / (B + 58), which the paper does not print",
            )


def matching_cells(figure: HeatMap, rule: Rule, offset: float = 58.0) -> int:
    """How many cells of a map a rule gives on the curve T proportional to B / (B + offset)."""
    caps = np.array(figure.caps, dtype=float)
    tokens = figure.input_tokens + figure.output_tokens
    curve = measured_curve(
        cap=caps,
        batch=caps,
        total_tokens_per_s=caps / (caps + offset),
        latency_s={"e2e": (caps + offset) * tokens},
        input_tokens=[figure.input_tokens],
        output_tokens=[figure.output_tokens],
        single_tokens_per_s=1 / (1 + offset),
    )
    reference_s = (1 + figure.reference_above) * (32 + offset) * tokens
    matching = 0
    for multiple, cells in zip(SLO_MULTIPLES, figure.cells, strict=True):
        for epsilon, printed in zip(EPSILONS, cells, strict=True):
            objective = Objective((Slo("e2e", multiple * reference_s),), rule, epsilon)
            found = decide(curve, objective)
            matching += isinstance(found, Decision) and found.chosen.batch_cap == printed
    return matching


def _figure_13() -> Iterator[Check]:
    for name, parameters, cap, kv_gib, saved_gib in FIGURE_13:
        reservation = Reservation(64 * GIB, 0.9, 2 * parameters, 0.0)
        memory = kv_memory(get_model(name), FIGURE_13_TOKENS, reservation=reservation)
        label = f"Fig. 13, {name.split('/')[1]} at cap {cap}"
        how = f"B x {FIGURE_13_TOKENS} tokens x KV bytes of a token"
        yield Check(f"{label}: KV cache", kv_gib, memory.needed_bytes(cap) / GIB, "GiB", how, 0.005)
        freed = (memory.freed_bytes(cap) or 0.0) / GIB
        how = "0.9 x 64 GiB - 2 bytes x nominal parameters - KV cache"
        yield Check(f"{label}: saved", saved_gib, freed, "GiB", how, 0.0055)
