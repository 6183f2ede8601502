"""Number formats of weights, KV cache and arithmetic."""

from __future__ import annotations

from servefit.errors import ServefitError

#: Bytes of one stored number, without the scales of block-quantised formats.
BYTES_PER_NUMBER: dict[str, float] = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "fp4": 0.5,
}

#: Other spellings in use, by the engine, tool or config that writes them.
ALIASES: dict[str, str] = {
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}


def canonical_dtype(name: str) -> str:
    """The canonical name of a dtype.

    Raises:
        ServefitError: the name is not known.
    """
    key = name.strip().lower().removeprefix("torch.")
    key = ALIASES.get(key, key)
    if key not in BYTES_PER_NUMBER:
        raise ServefitError(f"unknown dtype {name!r}: known are {', '.join(BYTES_PER_NUMBER)}")
    return key


def bytes_per_number(dtype: str) -> float:
    """Bytes of one number of ``dtype``; raises `ServefitError` for an unknown one."""
    return BYTES_PER_NUMBER[canonical_dtype(dtype)]
