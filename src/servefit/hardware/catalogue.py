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
from servefit.hardware.files import HardwareFile, parse_hardware_toml, read_hardware_file


def catalogue() -> tuple[Hardware, ...]:
    """The built-in accelerators."""
    return tuple(hardware for hardware, _ in _built_in().accelerators)


def get_hardware(name: str, extra_files: Sequence[str | Path] = ()) -> Hardware:
    """An accelerator by name; ``unknown`` is one without any known figure.

    Case, vendor names, spaces and dashes do not matter, so that names as drivers print them
    ("NVIDIA A100-SXM4-40GB") are understood. Files of the user's own come before the catalogue.

    Raises:
        ServefitError: the name is not known or ambiguous, or a file cannot be read.
    """
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
        + "see `servefit hardware`, describe it as name=...,flops=...,bandwidth=...,memory=..., "
        "or say unknown to have its rates fitted"
    )


@cache
def _built_in() -> HardwareFile:
    file = resources.files("servefit.hardware").joinpath("catalogue.toml")
    return parse_hardware_toml(file.read_text("utf-8"), "built-in catalogue")


def _normal(name: str) -> str:
    """Lower case without vendor and separators: "NVIDIA A100-SXM4-40GB" -> "a100sxm440gb"."""
    lowered = name.lower()
    return re.sub(r"\b(nvidia|amd|instinct|tesla|gpu)\b|[^a-z0-9]", "", lowered)
