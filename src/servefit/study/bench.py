"""The runs of a study, and how laws are given them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.evaluation import Score, evaluate
from servefit.hardware import Hardware
from servefit.laws import Law
from servefit.observations import BatchFrom, Observed, observe
from servefit.points import BoolArray
from servefit.runs.schema import FILE, ROW
from servefit.runs.select import parse_selections
from servefit.runs.table import RunTable
from servefit.study.derived import with_derived
from servefit.study.splits import Split


@dataclass(frozen=True)
class Bench:
    """Runs with derived columns.

    Attributes:
        table: the rows that are evaluated; ``row`` numbers them from 0, ``file`` and ``file_row``
            say where each was read.
        everything: the same with the rows that ``where`` leaves out.
        gpu: what the rows ran on, where they do not say so.
        batch_from: the batch that laws are given.
    """

    table: RunTable
    everything: RunTable
    gpu: Hardware | None = None
    batch_from: BatchFrom = "mean_batch"

    def score(self, law: Law, split: Split) -> Score:
        """Fit and test a law on a setting; what it refuses becomes the score's reason."""
        try:
            return evaluate(
                self.table,
                law,
                train=split.train,
                test=split.test,
                batch_from=self.batch_from,
                gpu=self.gpu,
            )
        except ServefitError as error:
            counts = int(split.train.sum()), int(split.test.sum())
            return Score(law.name, None, None, *counts, reason=str(error))

    def observe(self, mask: BoolArray) -> Observed:
        """Some rows as observations; raises `ServefitError` if none is usable."""
        frame = self.table.frame.filter(pl.Series(mask))
        return observe(frame, batch_from=self.batch_from, gpu=self.gpu)

    def fit(self, law: Law, mask: BoolArray) -> Calibration:
        """A law fitted on some rows; raises `ServefitError` if it refuses them."""
        return law.fit(self.observe(mask).observations)

    def curves(self, within: BoolArray | None = None) -> Iterator[tuple[str, BoolArray]]:
        """Each curve that has a row in ``within`` (all of them by default), and all its rows."""
        labels = np.array(self.table.frame["curve"].to_list())
        chosen = np.ones(len(labels), dtype=bool) if within is None else within
        for label in dict.fromkeys(labels[chosen].tolist()):
            yield label, labels == label


def bench_of(
    table: RunTable,
    where: tuple[str, ...],
    *,
    gpu: Hardware | None = None,
    batch_from: BatchFrom = "mean_batch",
) -> Bench:
    """Place the runs among each other, and keep those that ``where`` selects.

    Raises:
        ServefitError: as `with_derived`; ``where`` selects nothing.
    """
    everything = with_derived(table)
    chosen = with_derived(parse_selections(where).apply(everything, "where"))
    frame = chosen.frame.with_columns(
        pl.col(ROW).alias("file_row"), pl.int_range(pl.len(), dtype=pl.Int64).alias(ROW)
    )
    return Bench(replace(chosen, frame=frame), everything, gpu, batch_from)


def place(bench: Bench, row: int) -> str:
    """Where a row was read, for messages."""
    record = bench.table.frame.row(row, named=True)
    return f"row {record['file_row']} of {record[FILE]}"
