"""From declared settings to rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from servefit.points import BoolArray
from servefit.runs.select import parse_selections
from servefit.runs.table import RunTable
from servefit.study.settings import Setting


@dataclass(frozen=True)
class Split:
    """A setting on the rows at hand.

    Attributes:
        setting: as declared.
        train, test: which rows; no row is in both.
        reason: why the setting does not exist on these rows; ``None`` where it does.
        lacking: values that are listed to train on or to test and that no such row has.
    """

    setting: Setting
    train: BoolArray
    test: BoolArray
    reason: str | None = None
    lacking: tuple[str, ...] = ()


def resolve(settings: Sequence[Setting], table: RunTable) -> dict[str, Split]:
    """Each setting's rows, by its name; a setting without rows says why.

    Raises:
        ServefitError: a selection names a column that the table lacks.
    """
    splits: dict[str, Split] = {}
    for setting in settings:
        splits[setting.name] = _resolve(setting, table, splits)
    return splits


def _resolve(setting: Setting, table: RunTable, earlier: Mapping[str, Split]) -> Split:
    none = np.zeros(table.frame.height, dtype=bool)
    where = parse_selections(setting.where).mask(table.frame)
    parts = [earlier[name] for name in setting.union]
    absent = [part for part in parts if part.reason is not None]
    if absent:
        reason = f"{absent[0].setting.name}, which it unites, does not exist on these runs"
        return Split(setting, none, none, reason)
    masks = {
        "train": np.any([part.train for part in parts], axis=0) if parts else none,
        "test": np.any([part.test for part in parts], axis=0) if parts else none,
    }
    for role, texts in (("train", setting.train), ("test", setting.test)):
        if texts:
            masks[role] = parse_selections(texts).mask(table.frame)
        masks[role] = masks[role] & where
        if not masks[role].any():
            selection = parse_selections((*setting.where, *texts))
            return Split(setting, none, none, selection.nothing_matches(table, role))
    test = masks["test"] & ~masks["train"]
    if not test.any():
        return Split(setting, none, none, "every row to test is trained on")
    looked_at = table.frame.filter(pl.Series(where))
    lacking = [
        f"of {text!r} the runs to {verb} have {', '.join(present)} and lack {', '.join(missing)}"
        for verb, texts in (("train on", setting.train), ("test", setting.test))
        for text in texts
        for present, missing in [listed_values(text, looked_at)]
        if missing
    ]
    return Split(setting, masks["train"], test, lacking=tuple(lacking))


def listed_values(text: str, frame: pl.DataFrame) -> tuple[list[str], list[str]]:
    """Values that a selection lists: those that some row has, and the others.

    Nothing is listed in what a selection excludes.
    """
    (condition,) = parse_selections([text]).conditions
    present: list[str] = []
    missing: list[str] = []
    for value in () if condition.negated else condition.values:
        found = replace(condition, values=(value,)).mask(frame).any()
        (present if found else missing).append(value.text)
    return present, missing


def describe(table: RunTable, mask: BoolArray) -> str:
    """Which models, lengths and caps some rows hold, in one line."""
    frame = table.frame.filter(pl.Series(mask))
    if frame.is_empty():
        return "-"
    parts = []
    for column in ("model", "input_length", "output_length", "cap", "tp"):
        values = sorted(set(frame[column].to_list()))
        if column == "tp" and values == [1.0]:
            continue
        shown = [value if isinstance(value, str) else f"{value:g}" for value in values]
        if len(shown) > 6:
            shown = [*shown[:2], "...", shown[-1]]
        parts.append(f"{_SHORT[column]}{', '.join(shown)}")
    return "; ".join(parts)


_SHORT = {
    "model": "",
    "input_length": "input ",
    "output_length": "output ",
    "cap": "cap ",
    "tp": "TP ",
}
