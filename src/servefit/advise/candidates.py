"""Candidate batch caps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from servefit.errors import ServefitError
from servefit.points import IntArray

#: vLLM's ``max_num_seqs`` on GPUs of 70 GiB and more (256 on smaller ones): how far every integer
#: is tried where the KV capacity is unknown.
DEFAULT_MAX_BATCH = 1024
#: More candidates than this are no help to anyone.
MAX_CANDIDATES = 1_000_000


def candidate_caps(numbers: npt.ArrayLike) -> IntArray:
    """Caps from a list: ascending, without repeats.

    Raises:
        ServefitError: the list is empty, or one of them is not a whole number from 1.
    """
    values = np.asarray(numbers, dtype=np.float64)
    bad = ~((values >= 1) & (values < 2**53) & (values == np.rint(values)))
    if values.size == 0 or bad.any():
        worst = f"{values[bad].ravel()[0]:g}" if bad.any() else "none"
        raise ServefitError(f"candidates: {worst} given, but a batch cap is a whole number from 1")
    return np.unique(values.astype(np.int64))


def every_batch(largest: int | None) -> IntArray:
    """Every integer from 1 to ``largest`` (`DEFAULT_MAX_BATCH` where ``None``), at least 1."""
    limit = DEFAULT_MAX_BATCH if largest is None else min(max(largest, 1), MAX_CANDIDATES)
    return np.arange(1, limit + 1, dtype=np.int64)
