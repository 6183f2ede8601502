"""The built-in catalogue of accelerators and the look-up by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from servefit.errors import ServefitError
from servefit.hardware.accelerator import UNKNOWN, Hardware
from servefit.hardware.files import (
    HardwareFile,
    hardware_from_options,
    load_hardware_file,
    parse_hardware_toml,
    read_hardware_file,
)


def catalogue() -> tuple[Hardware, ...]:
    """The built-in accelerators."""
    return tuple(hardware for hardware, _ in _built_in().accelerators)


def get_hardware(name: str, extra_files: Sequence[str | Path] = ()) -> Hardware:
    """An accelerator by name; ``unknown`` is one without any known figure.

    Case, vendor names, spaces and dashes do not matter, so that names as drivers print them
    ("NVIDIA A100-SXM4-40GB") are understood. Files of the user's own come before the catalogue.
    In place of a name may stand ``mine.toml`` (a file with one accelerator), ``mine.toml:NAME``,
    or a description ``name=...,flops=...,bandwidth=...``, see `hardware_from_options`.

    Raises:
        ServefitError: the name is not known or ambiguous, or a file cannot be read.
    """
    if "=" in name:
        return hardware_from_options(name)
    path, dot_toml, entry = name.partition(".toml")
    if dot_toml and (entry == "" or entry.startswith(":")):
        return _from_file(f"{path}.toml", entry.removeprefix(":"))
    wanted = _normal(name)
    if wanted == "unknown":
        return UNKNOWN
    files = [read_hardware_file(Path(file)) for file in extra_files] + [_built_in()]
    known: list[str] = []
    for file in files:
        for hardware, names in file.accelerators:
            if wanted in map(_normal, names):
                return hardware
            known.append(hardware.name)
        for vague, choices in file.ambiguous.items():
            if wanted == _normal(vague):
                raise ServefitError(f"hardware {name!r} is ambiguous: say {' or '.join(choices)}")
    close = difflib.get_close_matches(wanted, [_normal(k) for k in known], n=3, cutoff=0.5)
    near = [known_name for known_name in known if _normal(known_name) in close]
    raise ServefitError(
        f"hardware {name!r} is not in the catalogue: "
        + (f"did you mean {' or '.join(near)}? " if near else "")
        + "see `servefit hardware`, give a file mine.toml of your own, describe it as "
        "name=...,flops=...,bandwidth=...,memory=..., or say unknown to have its rates fitted"
    )


@cache
def _built_in() -> HardwareFile:
    file = resources.files("servefit.hardware").joinpath("catalogue.toml")
    return parse_hardware_toml(file.read_text("utf-8"), "built-in catalogue")


def _from_file(path: str, name: str) -> Hardware:
    accelerators = load_hardware_file(path)
    if name:
        return get_hardware(name, [path])
    if len(accelerators) != 1:
        names = " or ".join(f"{path}:{a.name}" for a in accelerators) or "none"
        raise ServefitError(f"{path}: holds {len(accelerators)} accelerators: say {names}")
    return accelerators[0]


def _normal(name: str) -> str:
    """Lower case without vendor and separators: "NVIDIA A100-SXM4-40GB" -> "a100sxm440gb"."""
    lowered = name.lower()
    return re.sub(r"\b(nvidia|amd|instinct|tesla|gpu)\b|[^a-z0-9]", "", lowered)
