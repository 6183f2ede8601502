"""What the user says of the points: ``--set key=value``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servefit.errors import ServefitError
from servefit.importers.point import Point, Reading, Value
from servefit.runs.cells import BadCellError, parse_cell
from servefit.runs.schema import COLUMNS, resolve

#: ``--set batch=suggested`` confirms what each file's own name suggests.
SUGGESTED = "suggested"

#: ``--set all=suggested`` confirms every suggestion.
ALL = "all"


@dataclass(frozen=True)
class Settings:
    """Values for every point.

    Attributes:
        values: column -> value.
        confirmed: columns whose suggestions are confirmed.
    """

    values: Mapping[str, Value]
    confirmed: frozenset[str] = frozenset()

    def apply(self, point: Point) -> None:
        """Set the columns; what a file says otherwise is overruled, and said."""
        chosen = dict(self.values)
        for suggestion in point.suggestions:
            if suggestion.column in self.confirmed or ALL in self.confirmed:
                chosen[suggestion.column] = suggestion.value
        for column, value in chosen.items():
            before = point.shown(column)
            point.readings[column] = Reading(value, "--set", str(value))
            if before and before != point.shown(column):
                message = f"{column} = {value} as set; the file says {before}"
                point.say("--set", "corrected", message)
        given = set(chosen)
        point.suggestions = [s for s in point.suggestions if s.column not in given]


def parse_settings(texts: Sequence[str]) -> Settings:
    """Settings from ``key=value`` texts; keys are columns of the table of runs, or aliases.

    Raises:
        ServefitError: a text has no ``=``, names no column, or its value does not parse.
    """
    values: dict[str, Value] = {}
    confirmed = set()
    for text in texts:
        key, equals, raw = text.partition("=")
        alias = resolve(key, "runs")
        if not equals or not raw.strip():
            raise ServefitError(f"--set {text}: write it as key=value, such as model=NAME")
        if key == ALL and raw.strip() == SUGGESTED:
            confirmed.add(ALL)
            continue
        if alias is None:
            raise ServefitError(f"--set {text}: {key} is no column (`servefit check --columns`)")
        if raw.strip() == SUGGESTED:
            confirmed.add(alias.column)
            continue
        column = COLUMNS["runs"][alias.column]
        try:
            value = parse_cell(raw, column, alias)
        except BadCellError as error:
            raise ServefitError(f"--set {text}: {error}") from None
        low = column.at_least if column.above is None else column.above
        if isinstance(value, int | float) and low is not None and value < low:
            raise ServefitError(f"--set {text}: must be at least {low:g}")
        if value is not None:
            values[column.name] = value
    return Settings(values, frozenset(confirmed))
