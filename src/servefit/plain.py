"""Any of our values in JSON's types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any


def to_plain(value: object) -> Any:
    """``value`` in JSON's types; what is not finite is ``None``."""
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return to_plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # numpy scalars and arrays, polars series
        return to_plain(value.tolist())
    if hasattr(value, "to_list"):
        return to_plain(value.to_list())
    if isinstance(value, Iterable):
        return [to_plain(v) for v in value]
    return str(value)
