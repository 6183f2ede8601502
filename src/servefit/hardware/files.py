"""Accelerators from TOML files (the catalogue and the user's own) and from the command line."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.hardware.accelerator import Hardware
from servefit.units import parse_bytes

_NUMBERS = ("memory_bandwidth_bytes_per_s", "memory_bytes", "link_bandwidth_bytes_per_s")
_KEYS = {"name", "vendor", "aliases", "peak_flops_per_s", *_NUMBERS, "sources", "notes"}
#: No accelerator has fewer FLOP/s, bytes/s or bytes.
SMALLEST_RATE = 1e6
_MULTIPLES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True)
class HardwareFile:
    """What a file of accelerators holds.

    Attributes:
        accelerators: each with all its names, the own one first.
        ambiguous: names that could mean several accelerators, with the choices.
    """

    accelerators: tuple[tuple[Hardware, tuple[str, ...]], ...]
    ambiguous: Mapping[str, tuple[str, ...]]


def load_hardware_file(path: str | Path) -> tuple[Hardware, ...]:
    """The accelerators of a TOML file of ``[[accelerator]]`` tables, as in the catalogue.

    Raises:
        ServefitError: the file cannot be read, or a key or value is wrong.
    """
    return tuple(hardware for hardware, _ in read_hardware_file(Path(path)).accelerators)


def read_hardware_file(path: Path) -> HardwareFile:
    """The same with the names; raises `ServefitError` alike."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ServefitError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ServefitError(f"{path}: is not UTF-8 text, expected TOML") from error
    return parse_hardware_toml(text, str(path))


def parse_hardware_toml(text: str, where: str) -> HardwareFile:
    """Parse the text of such a file, called ``where`` in errors."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ServefitError(f"{where}: is not TOML: {error}") from error
    entries = values.get("accelerator")
    if not isinstance(entries, list) or not entries:
        raise ServefitError(f"{where}: holds no [[accelerator]] table")
    ambiguous = values.get("ambiguous", {})
    return HardwareFile(
        accelerators=tuple(_accelerator(entry, where) for entry in entries),
        ambiguous={name: tuple(choices) for name, choices in ambiguous.items()},
    )


def hardware_toml(hardware: Hardware) -> str:
    """The text of a file that `load_hardware_file` reads the same accelerator back from."""
    lines = ["[[accelerator]]", f"name = {_toml_string(hardware.name)}"]
    for key in _NUMBERS:
        value = getattr(hardware, key)
        if value is not None:
            lines.append(f"{key} = {value!r}")
    if hardware.vendor:
        lines.append(f"vendor = {_toml_string(hardware.vendor)}")
    if hardware.notes:
        lines.append(f"notes = {_toml_string(hardware.notes)}")
    lines += ["", "[accelerator.peak_flops_per_s]"]
    lines += [f"{dtype} = {rate!r}" for dtype, rate in hardware.peak_flops_per_s.items()]
    lines += ["", "[accelerator.sources]"]
    lines += [f"{key} = {_toml_string(source)}" for key, source in hardware.sources.items()]
    return "\n".join(lines) + "\n"


def _toml_string(text: str) -> str:
    # A JSON string without escaped surrogates is a TOML basic string.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def hardware_from_options(text: str) -> Hardware:
    """An accelerator from ``name=MyGPU,flops=312e12,bandwidth=1.5TB/s,memory=40GB``.

    Keys: ``name``; ``flops``, dense FLOP/s in 16 bits, and the same by dtype (``fp8=``,
    ``int8=``, ``float32=``, ...); ``bandwidth`` and ``link`` in bytes/s; ``memory`` in bytes.
    Numbers are plain or have a unit: ``312T``, ``1.5TB/s``, ``40GB`` (10^9), ``40GiB`` (2^30).
    What is left out is unknown.

    Raises:
        ServefitError: an unknown key, a missing name, or a value that is not positive.
    """
    entry: dict[str, Any] = {"peak_flops_per_s": {}}
    long_names = {"bandwidth": _NUMBERS[0], "memory": _NUMBERS[1], "link": _NUMBERS[2]}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise ServefitError(f"hardware option {item!r}: expected key=value")
        if key == "name":
            entry["name"] = value
        elif key in long_names:
            entry[long_names[key]] = _quantity(key, value)
        elif key == "flops":
            rate = _quantity(key, value)
            entry["peak_flops_per_s"] |= {"float16": rate, "bfloat16": rate}
        else:
            entry["peak_flops_per_s"][_option_dtype(key)] = _quantity(key, value)
    numbers = [key for key in ("peak_flops_per_s", *_NUMBERS) if entry.get(key)]
    entry["sources"] = dict.fromkeys(numbers, "given by the user")
    return _accelerator(entry, f"hardware {text!r}")[0]


def _option_dtype(key: str) -> str:
    try:
        return canonical_dtype(key)
    except ServefitError:
        raise ServefitError(
            f"hardware option {key!r} is not known: use name, flops, bandwidth, memory, link, "
            "or a dtype such as fp8"
        ) from None


def _quantity(key: str, text: str) -> float:
    """A plain number, one with K, M, G, T or P, or bytes with a unit; optionally per second."""
    number = text.removesuffix("/s").strip()
    number = number.upper().removesuffix("FLOPS").removesuffix("FLOP").strip()
    multiple = _MULTIPLES.get(number[-1:], 1.0)
    try:
        value = float(number if multiple == 1.0 else number[:-1]) * multiple
    except ValueError:
        value = parse_bytes(number)
    return _rate(value, f"hardware option {key}={text}")


def _accelerator(entry: object, where: str) -> tuple[Hardware, tuple[str, ...]]:
    if not isinstance(entry, dict):
        raise ServefitError(f"{where}: [[accelerator]] must be a table")
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ServefitError(f"{where}: an accelerator has no name")
    where = f"{where}: accelerator {name!r}"
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise ServefitError(
            f"{where}: unknown key {unknown[0]!r}: known are {', '.join(sorted(_KEYS))}"
        )
    rates = entry.get("peak_flops_per_s", {})
    if not isinstance(rates, dict):
        raise ServefitError(f"{where}: peak_flops_per_s must be a table of dtype = FLOP/s")
    aliases = entry.get("aliases", [])
    sources = entry.get("sources", {})
    if not _are_strings(aliases, list) or not _are_strings(sources, dict):
        raise ServefitError(f"{where}: aliases must be a list and sources a table of strings")
    hardware = Hardware(
        name=name,
        peak_flops_per_s={
            canonical_dtype(dtype): _rate(rate, f"{where}: peak_flops_per_s.{dtype}")
            for dtype, rate in rates.items()
        },
        **{key: _rate(entry[key], f"{where}: {key}") for key in _NUMBERS if key in entry},
        vendor=str(entry.get("vendor", "")),
        sources=sources,
        notes=str(entry.get("notes", "")),
    )
    return hardware, (name, *aliases)


def _are_strings(value: object, kind: type[list[Any]] | type[dict[str, Any]]) -> bool:
    if not isinstance(value, kind):
        return False
    items = value.values() if isinstance(value, dict) else value
    return all(isinstance(item, str) for item in items)


def _rate(value: object, what: str) -> float:
    """A rate or size; below a million it must have been meant in another unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ServefitError(f"{what} = {value!r}: must be a number")
    if not (value > 0 and math.isfinite(value)):
        raise ServefitError(f"{what}: must be positive and finite")
    if value < SMALLEST_RATE:
        raise ServefitError(f"{what}: is below {SMALLEST_RATE:g}; write FLOP/s and bytes, or units")
    return float(value)
