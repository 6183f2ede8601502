"""Columns that place each run among the others, so that settings are plain selections.

A *series* is a controlled comparison: runs that differ in model, lengths and batch cap alone. A
*curve* is the part of a series with one model and one pair of lengths; its points differ in the
cap. Lengths within 5 % of each other are one length: a mean over a random mix is never exact, and
tokenisers differ.

| column | meaning |
|---|---|
| `cap` | `max_num_seqs`, else static `batch`, else `concurrency`, else `mean_batch`, rounded up |
| `cap_rank` | 1 for the smallest cap of the row's curve, 2 for the next, ... |
| `series`, `curve` | names of the groups |
| `model_rank` | 1 for the model with most parameters in the table, 2 for the next, ... |
| `models` | how many models the row's series has |
| `smallest_model` | true for the model with the fewest parameters in the table |
| `largest_model` | true for the model with the most, where its series has others |
| `input_length`, `output_length` | the lengths, those within 5 % named alike |
| `input_rank` | 1 for the longest input with this model and output in the series, ... |
| `input_lengths` | how many inputs there are to rank |
| `output_rank`, `output_lengths` | the same for the output, with this model and input |
| `inner_output` | true for the longest output but one, or the only one |
| `family` | the model's name up to the first digit |
| `family_rank` | 1 for the family with most models (then most rows) on one accelerator, ... |
| `tp` | `tensor_parallel_size`, 1 where it is not said |
| `preempted` | true where the engine ran out of KV cache |
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from servefit.errors import ServefitError
from servefit.models import get_model
from servefit.points import FloatArray, IntArray
from servefit.runs.table import RunTable

#: What a series has one value of.
SERIES = (
    "campaign",
    "gpu",
    "tensor_parallel_size",
    "engine",
    "engine_version",
    "dtype",
    "kv_cache_dtype",
    "max_num_batched_tokens",
    "chunked_prefill",
    "mode",
)
#: Lengths closer than this are one length.
SAME_LENGTH = 1.05


def with_derived(table: RunTable) -> RunTable:
    """The table with the columns of the module's text; rows without model or lengths are dropped.

    A column of the same name that the file has itself is replaced.

    Raises:
        ServefitError: a table of engine steps; an unknown model; no row with model, lengths and
            batch.
    """
    if table.kind != "runs":
        raise ServefitError("a study needs a table of runs, not of engine steps")
    cap = first_known(
        table.numbers("max_num_seqs"),
        table.numbers("batch"),
        table.numbers("concurrency"),
        np.ceil(table.numbers("mean_batch")),
    )
    lengths = table.numbers("input_tokens"), table.numbers("output_tokens")
    named = np.array([name is not None for name in table.texts("model")])
    usable = named & np.isfinite(cap) & np.isfinite(lengths[0]) & np.isfinite(lengths[1])
    if not usable.any():
        raise ServefitError("no row has a model, lengths and a batch: nothing can be studied")
    table, cap = table.filter(usable), cap[usable]
    inputs, outputs = (length_class(length[usable]) for length in lengths)

    models = [str(name) for name in table.texts("model")]
    series = _series(table)
    curve_keys = list(zip(series, models, inputs.tolist(), outputs.tolist(), strict=True))
    parallel = first_known(table.numbers("tensor_parallel_size"), np.ones(len(cap)))
    input_groups = list(zip(series, models, outputs.tolist(), strict=True))
    output_groups = list(zip(series, models, inputs.tolist(), strict=True))
    output_rank, output_lengths = _ranks(output_groups, outputs, longest_first=True)
    input_rank, input_lengths = _ranks(input_groups, inputs, longest_first=True)
    model_ranks, in_series = _model_ranks(models), _distinct_in(series, models)
    families = [family_of(model) for model in models]
    columns = {
        "cap": cap,
        "cap_rank": _ranks(curve_keys, cap, longest_first=False)[0],
        "series": series,
        "curve": _curve_labels(curve_keys, [length[usable] for length in lengths]),
        "model_rank": model_ranks,
        "smallest_model": model_ranks == model_ranks.max(),
        "models": in_series,
        "largest_model": (model_ranks == 1) & (in_series > 1),
        "input_length": inputs,
        "output_length": outputs,
        "input_rank": input_rank,
        "input_lengths": input_lengths,
        "output_rank": output_rank,
        "output_lengths": output_lengths,
        "inner_output": output_rank == np.minimum(output_lengths, 2),
        "family": families,
        "family_rank": _family_ranks(families, models, parallel),
        "tp": parallel,
        "preempted": table.numbers("preemptions") > 0,
    }
    frame = table.frame.with_columns(pl.Series(name, values) for name, values in columns.items())
    return replace(table, frame=frame)


def first_known(*columns: FloatArray) -> FloatArray:
    """Element by element the first value that is not NaN."""
    result = columns[0]
    for column in columns[1:]:
        result = np.where(np.isnan(result), column, result)
    return result


def length_class(lengths: FloatArray) -> FloatArray:
    """Each length's class: the rounded mean of the distinct lengths within `SAME_LENGTH`."""
    distinct = np.unique(lengths)
    classes = np.empty_like(distinct)
    start = 0
    for end in range(1, len(distinct) + 1):
        if end == len(distinct) or distinct[end] > SAME_LENGTH * distinct[start]:
            classes[start:end] = np.rint(distinct[start:end].mean())
            start = end
    return np.asarray(classes[np.searchsorted(distinct, lengths)])


def family_of(model: str) -> str:
    """The name up to its first size or version: ``opt`` of ``facebook/opt-1.3b``."""
    base = model.rstrip("/").rsplit("/", 1)[-1]
    if base == "config.json":
        base = model.rstrip("/").rsplit("/", 2)[-2]
    stem = re.match(r"[^\d]*[A-Za-z]", base)
    return (stem.group() if stem else base).rstrip("-_. ").lower()


def short_name(model: str) -> str:
    """A model's name as figures show it: without its owner, folder or chat suffix."""
    parts = [part for part in model.split("/") if part and part != "config.json"]
    return re.sub(r"-hf$", "", parts[-1] if parts else model)


def _curve_labels(
    keys: Sequence[tuple[str, str, float, float]], lengths: Sequence[FloatArray]
) -> list[str]:
    """``opt-1.3b 242+260``; the series is named too where it does not go without saying."""
    members = defaultdict(list)
    for index, key in enumerate(keys):
        members[key].append(index)
    plain = {
        key: f"{short_name(key[1])} {lengths[0][rows].mean():.0f}+{lengths[1][rows].mean():.0f}"
        for key, rows in members.items()
    }
    shared = Counter(plain.values())
    return [
        f"{plain[key]} ({key[0]})" if shared[plain[key]] > 1 and key[0] else plain[key]
        for key in keys
    ]


def _series(table: RunTable) -> list[str]:
    """Each row's values of `SERIES`, those that all rows share left out of the name."""
    columns = {name: table.texts(name) for name in SERIES if name in table.frame.columns}
    telling = [values for values in columns.values() if len(set(values)) > 1]
    if not telling:
        return [""] * table.frame.height
    return [", ".join(str(v) for v in row if v is not None) for row in zip(*telling, strict=True)]


def _ranks(
    groups: Sequence[Hashable], values: FloatArray, *, longest_first: bool
) -> tuple[IntArray, IntArray]:
    """Rank of each value among its group's distinct values, from 1; and how many there are."""
    members = defaultdict(set)
    for group, value in zip(groups, values.tolist(), strict=True):
        members[group].add(value)
    order = {
        group: {v: i for i, v in enumerate(sorted(seen, reverse=longest_first), start=1)}
        for group, seen in members.items()
    }
    pairs = list(zip(groups, values.tolist(), strict=True))
    rank = np.array([order[group][value] for group, value in pairs], dtype=np.int64)
    return rank, np.array([len(order[group]) for group in groups], dtype=np.int64)


def _model_ranks(models: Sequence[str]) -> IntArray:
    largest_first = sorted(set(models), key=lambda name: (-get_model(name).num_parameters, name))
    return np.array([1 + largest_first.index(name) for name in models], dtype=np.int64)


def _distinct_in(groups: Sequence[Hashable], values: Sequence[str]) -> IntArray:
    seen = defaultdict(set)
    for group, value in zip(groups, values, strict=True):
        seen[group].add(value)
    return np.array([len(seen[group]) for group in groups], dtype=np.int64)


def _family_ranks(
    families: Sequence[str], models: Sequence[str], parallel: FloatArray
) -> list[int]:
    """Most models first, then most rows, then by name; rows on one accelerator count."""
    models_of: dict[str, set[str]] = defaultdict(set)
    rows_of: Counter[str] = Counter()
    for family, model, size in zip(families, models, parallel.tolist(), strict=True):
        if size == 1:
            models_of[family].add(model)
            rows_of[family] += 1
    order = sorted(set(families), key=lambda f: (-len(models_of[f]), -rows_of[f], f))
    return [1 + order.index(family) for family in families]
