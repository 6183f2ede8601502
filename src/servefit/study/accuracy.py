"""Tables II, III and IV: settings, errors of every law, ablation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from servefit.evaluation import Score
from servefit.laws import get_law
from servefit.laws.slim import Slim
from servefit.points import BoolArray
from servefit.study import published
from servefit.study.bench import Bench, place
from servefit.study.settings import Study
from servefit.study.splits import Split, describe
from servefit.study.tables import Column, Table

#: Called with what is being done, before it is.
Progress = Callable[[str], None]

#: Table IV: key -> what is left out of SLIM.
ABLATIONS: Mapping[str, tuple[str, Slim]] = {
    "full": ("nothing", Slim()),
    "kv": ("the KV scan (M_dec = 0)", Slim(without="kv")),
    "dense": ("dense decode (T_d = 0)", Slim(without="dense")),
    "gamma": ("dense decode's architecture term (gamma = 0)", Slim(without="gamma")),
    "sum": ("nothing, other reading of Eq. 9", Slim(decode_form="sum")),
}


@dataclass(frozen=True)
class Accuracy:
    """Every law in every setting.

    Attributes:
        splits: the settings on the rows at hand, by name.
        scores: by setting and law.
        ablation: by setting and key of `ABLATIONS`.
    """

    splits: Mapping[str, Split]
    scores: Mapping[str, Mapping[str, Score]]
    ablation: Mapping[str, Mapping[str, Score]]


def measure(
    study: Study, bench: Bench, splits: Mapping[str, Split], progress: Progress
) -> Accuracy:
    """Fit and test every law in every setting that exists."""
    scores: dict[str, dict[str, Score]] = {}
    for name, split in splits.items():
        scores[name] = {}
        for law in () if split.reason else study.laws:
            progress(f"{name}: {law}")
            scores[name][law] = bench.score(get_law(law), split)
    ablation: dict[str, dict[str, Score]] = {}
    for name in study.ablation.settings if study.ablation else ():
        ablation[name] = {}
        if splits[name].reason is None:
            progress(f"ablation: {name}")
            for key, (_, variant) in ABLATIONS.items():
                ablation[name][key] = bench.score(variant, splits[name])
    return Accuracy(splits, scores, ablation)


def settings_table(bench: Bench, splits: Mapping[str, Split]) -> Table:
    """Table II on the rows at hand."""
    rows = [
        {
            "setting": name,
            "about": split.setting.about,
            "train_rows": None if split.reason else int(split.train.sum()),
            "test_rows": None if split.reason else int(split.test.sum()),
            "train": None if split.reason else describe(bench.table, split.train),
            "test": f"does not exist: {split.reason}"
            if split.reason
            else describe(bench.table, split.test),
        }
        for name, split in splits.items()
    ]
    columns = (
        Column("setting", "setting"),
        Column("about", "what it asks"),
        Column("train_rows", "train", 0),
        Column("test_rows", "test", 0),
        Column("train", "trained on"),
        Column("test", "tested on"),
    )
    title = "Settings on these runs (Table II)"
    return Table("table_2_settings", title, columns, tuple(rows), tuple(_lacking(splits)))


def _lacking(splits: Mapping[str, Split]) -> list[str]:
    """Settings that could be filled in part only, and what they then train on."""
    return [f"{name}: {what}" for name, split in splits.items() for what in split.lacking]


def errors_table(study: Study, bench: Bench, accuracy: Accuracy) -> Table:
    """Table III: MAPE on throughput and E2E, the paper's own numbers beside ours."""
    rows, notes = [], []
    refused: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    for name, split in accuracy.splits.items():
        printed = published.TABLE_III.get(split.setting.paper or "", {})
        for law in study.laws:
            paper = printed.get(law, (None, None))
            if split.reason and law not in printed:
                continue
            row: dict[str, Any] = {
                "setting": name + (" *" if split.setting.variant else ""),
                "law": law,
                "paper_throughput_pct": paper[0],
                "paper_e2e_pct": paper[1],
            }
            if split.reason is None:
                score = accuracy.scores[name][law]
                row |= {
                    "throughput_mape_pct": score.throughput_mape_pct,
                    "e2e_mape_pct": score.e2e_mape_pct,
                    "trained": score.n_train,
                    "tested": score.n_test,
                }
                if score.reason:
                    reason = score.reason.removeprefix(f"{law}: ")
                    refused.setdefault(f"{law}: {reason}", []).append(name)
                elif score.calibration is not None:
                    for note in score.calibration.notes:
                        count, _, what = note.partition(" rows carry ")
                        if what:
                            lost.setdefault(f"{law}: rows that carry {what}", []).append(
                                f"{name} {count}"
                            )
            rows.append(row)
        if split.reason:
            notes.append(f"{name}: does not exist on these runs: {split.reason}")
    for found in (refused, lost):
        notes += [f"{reason} ({', '.join(names)})" for reason, names in found.items()]
    if any(split.setting.variant for split in accuracy.splits.values()):
        notes.insert(0, "* A variant: reported, and left out of averages")
    notes += [*_lacking(accuracy.splits), *_left_out(bench, accuracy)]
    notes += _average_notes(study, accuracy)
    columns = (
        Column("setting", "setting"),
        Column("law", "law"),
        Column("throughput_mape_pct", "throughput MAPE, %", 1),
        Column("e2e_mape_pct", "E2E MAPE, %", 1),
        Column("trained", "trained on", 0),
        Column("tested", "tested", 0),
        Column("paper_throughput_pct", "paper: throughput", 1, ""),
        Column("paper_e2e_pct", "paper: E2E", 1, ""),
    )
    title = "MAPE on rows not trained on (Table III)"
    return Table("table_3_errors", title, columns, tuple(rows), tuple(notes))


def _left_out(bench: Bench, accuracy: Accuracy) -> list[str]:
    """Rows that lack what every law needs, by reason; a few are named."""
    reasons: dict[str, list[int]] = {}
    seen = {u for scores in accuracy.scores.values() for s in scores.values() for u in s.unusable}
    for row, reason in sorted(seen):
        reasons.setdefault(reason, []).append(row)
    return [
        f"{len(rows)} rows are left out, {reason}: "
        + ", ".join(place(bench, row) for row in rows[:3])
        + (", ..." if len(rows) > 3 else "")
        for reason, rows in reasons.items()
    ]


def reductions(study: Study, accuracy: Accuracy, law: str) -> dict[str, float]:
    """1 - mean error of a law / mean error of the baselines, by setting that has both."""
    found = {}
    for name, scores in accuracy.scores.items():
        if accuracy.splits[name].setting.variant or law not in scores:
            continue
        own = _errors([scores[law]])
        others = _errors([scores[b] for b in study.baselines if b in scores])
        if own and others:
            found[name] = published.reduction(own, others)
    return found


def _errors(scores: Sequence[Score]) -> list[float]:
    pairs = [(s.throughput_mape_pct, s.e2e_mape_pct) for s in scores]
    return [e for pair in pairs for e in pair if e is not None]


def _average_notes(study: Study, accuracy: Accuracy) -> list[str]:
    notes = []
    scores = list(accuracy.scores.values())
    for law in dict.fromkeys((study.law, *study.laws)):
        if law in study.baselines:
            continue
        found = reductions(study, accuracy, law)
        if not found:
            continue
        mean = 100 * float(np.mean(list(found.values())))
        each = ", ".join(f"{name} {100 * value:.0f}" for name, value in found.items())
        baselines = [b for b in study.baselines if _errors([s[b] for s in scores if b in s])]
        notes.append(
            f"{law}: error {abs(mean):.1f} % {'below' if mean >= 0 else 'above'} the mean of "
            f"{' and '.join(baselines)} "
            f"on average over settings ({each} %)"
        )
    if notes:
        notes.append(
            f"The paper prints {published.MEAN_REDUCTION} % for SLIM, computed the same way over "
            "five settings on runs of its own (other vLLM, lengths and models)"
        )
    return notes


def ablation_table(bench: Bench, accuracy: Accuracy) -> Table:
    """Table IV, with what is known of why ours differs from the paper's."""
    rows = []
    for name, scores in accuracy.ablation.items():
        printed = published.TABLE_IV.get(accuracy.splits[name].setting.paper or "", {})
        for key, (label, _) in ABLATIONS.items():
            # The paper does not say which of its two readings "w/o dense" is.
            paper = printed.get("dense" if key == "gamma" else key, (None, None))
            score = scores.get(key)
            rows.append(
                {
                    "setting": name,
                    "without": label,
                    "throughput_mape_pct": score and score.throughput_mape_pct,
                    "e2e_mape_pct": score and score.e2e_mape_pct,
                    "paper_throughput_pct": paper[0],
                    "paper_e2e_pct": paper[1],
                }
            )
    notes = [
        f"{name}: does not exist on these runs: {accuracy.splits[name].reason}"
        for name in accuracy.ablation
        if accuracy.splits[name].reason
    ]
    notes.append(
        "The paper does not say whether its `w/o dense` drops all of T_d or its architecture term "
        "alone: its number stands beside both"
    )
    notes.append(published.OTHER_RUNS)
    notes += [
        f"{name}: a decode step reads of the KV cache, for a request, "
        f"{_cache_reads(bench, accuracy.splits[name])}: the KV scan is worth more the further "
        "these lie apart. The paper's figures imply inputs of 2 tokens, where the context grows "
        "with the output"
        for name in accuracy.ablation
        if accuracy.splits[name].reason is None
    ]
    columns = (
        Column("setting", "setting"),
        Column("without", "SLIM without"),
        Column("throughput_mape_pct", "throughput MAPE, %", 1),
        Column("e2e_mape_pct", "E2E MAPE, %", 1),
        Column("paper_throughput_pct", "paper: throughput", 1, ""),
        Column("paper_e2e_pct", "paper: E2E", 1, ""),
    )
    return Table(
        "table_4_ablation", "Terms of SLIM left out (Table IV)", columns, tuple(rows), tuple(notes)
    )


def _cache_reads(bench: Bench, split: Split) -> str:
    """KV cache that a decode step reads for a request, (IL + OL / 2) x KV bytes of a token."""

    def span(mask: BoolArray) -> str:
        points = bench.observe(mask).observations.points
        context = points.input_tokens + points.output_tokens / 2
        mib = context * points.per_model(lambda m: m.kv_bytes_per_token) / 2**20
        if not mib.size:
            return "unknown"
        low, high = f"{mib.min():.3g}", f"{mib.max():.3g}"
        return low if low == high else f"{low} to {high}"

    return f"{span(split.train)} MiB where trained, {span(split.test)} MiB where tested"
