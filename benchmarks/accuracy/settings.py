"""The settings of ``settings.toml``, scored as ``servefit evaluate`` does."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from servefit import api
from servefit.evaluation import Score, evaluate
from servefit.laws import Law
from servefit.observations import BatchFrom, ContextFrom
from servefit.runs.select import parse_selections
from servefit.runs.table import RunTable


@dataclass(frozen=True)
class Setting:
    """One split of one file; the fields are those of ``settings.toml``."""

    name: str
    title: str
    file: str
    train: tuple[str, ...]
    where: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    batch_from: BatchFrom = "mean_batch"
    context_from: ContextFrom = "lengths"
    gpu: str | None = None
    bar: float | None = None
    in_sample: bool = False
    explained: bool = False

    @property
    def has_step_times(self) -> bool:
        return Path(self.file).name == "steps.csv"

    @property
    def in_table(self) -> bool:
        """Whether it belongs to the table of bars."""
        return self.bar is not None or self.explained

    def command(self, law: str = "slim,step") -> str:
        """The command line that prints this score."""
        options = [f"--where {w}" for w in self.where] + [f"--train {t}" for t in self.train]
        options += [f"--test {t}" for t in self.test]
        if self.batch_from != "mean_batch":
            options.append(f"--batch-from {self.batch_from}")
        if self.context_from != "lengths":
            options.append(f"--context-from {self.context_from}")
        if self.gpu is not None:
            options.append(f"--gpu {self.gpu}")
        return f"servefit evaluate $SERVEFIT_DATA/data/{self.file} --law {law} {' '.join(options)}"


@cache
def settings() -> tuple[Setting, ...]:
    """All settings, in the order of the file."""
    text = (Path(__file__).parent / "settings.toml").read_text(encoding="utf-8")

    def frozen(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    return tuple(
        Setting(**{key: frozen(value) for key, value in entry.items()})
        for entry in tomllib.loads(text)["setting"]
    )


def setting(name: str) -> Setting:
    """The one of that name."""
    return next(s for s in settings() if s.name == name)


@cache
def table(file: str) -> RunTable:
    """A published table, read and checked."""
    return api.read_runs(Path(os.environ["SERVEFIT_DATA"]) / "data" / file)


def selected(file: str, where: tuple[str, ...]) -> RunTable:
    """Its rows that the selections match."""
    whole = table(file)
    return whole.filter(parse_selections(where).mask(whole.frame))


def score(of: Setting, law: Law) -> Score:
    """How a law does in a setting."""
    rows = selected(of.file, of.where)
    return evaluate(
        rows,
        law,
        train=None if of.train == ("none",) else parse_selections(of.train).mask(rows.frame),
        test=parse_selections(of.test).mask(rows.frame),
        batch_from=of.batch_from,
        context_from=of.context_from,
        gpu=api.as_hardware(of.gpu),
    )


def error_pct(found: Score) -> float | None:
    """MAPE of throughput, or of the step time where steps were scored."""
    if found.throughput_mape_pct is None:
        return found.step_time_mape_pct
    return found.throughput_mape_pct
