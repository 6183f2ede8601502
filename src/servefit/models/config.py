"""Reading a HuggingFace config: typed, bounded values with errors that name the key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError

#: No size in a model comes near this; larger values are mistakes.
LARGEST_SIZE = 10**9
#: Deepest model that is read.
MOST_LAYERS = 10_000
#: A config is a few kilobytes; quantised ones with long module lists reach a few hundred.
LARGEST_CONFIG_BYTES = 16 * 2**20


class Config:
    """A ``config.json`` whose values are checked as they are read.

    A key that is missing or null takes the given default, which is the one of the model's config
    class in transformers; without a default it is an error.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        """Wrap the decoded JSON object of the model ``name``."""
        self.values = values
        self.name = name

    def __contains__(self, key: str) -> bool:
        """Whether the key has a value other than null."""
        return self.values.get(key) is not None

    def error(self, message: str) -> ServefitError:
        """An error about this config, to raise."""
        return ServefitError(f"config of {self.name!r}: {message}")

    def size(
        self,
        key: str,
        default: int | None = None,
        *,
        least: int = 1,
        most: int = LARGEST_SIZE,
    ) -> int:
        """A whole number within bounds; 1 or more unless ``least`` says otherwise."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing: it has no default, add it to the config")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key} = {_short(value)}: must be a whole number")
        if not least <= value <= most:
            raise self.error(f"{key} = {_short(value)}: must lie between {least} and {most}")
        return value

    def optional_size(self, key: str) -> int | None:
        """A positive whole number, or ``None`` where the key is missing or null."""
        return self.size(key) if key in self else None

    def layers(self, key: str = "num_hidden_layers", default: int | None = None) -> int:
        """The number of layers."""
        return self.size(key, default, most=MOST_LAYERS)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} = {_short(value)}: must be true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(f"{key} = {_short(value)}: must be a string")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive finite number."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key} = {_short(value)}: must be a number")
        if not 0 < value <= LARGEST_SIZE:
            raise self.error(f"{key} = {_short(value)}: must be positive, at most {LARGEST_SIZE}")
        return float(value)

    def items(self, key: str) -> list[Any] | None:
        """A list, or ``None`` where the key is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(f"{key} = {_short(value)}: must be a list")
        return value

    def labels(self, key: str) -> list[str] | None:
        """A list of strings, or ``None``."""
        items = self.items(key)
        if items is not None and not all(isinstance(item, str) for item in items):
            raise self.error(f"{key}: must be a list of strings")
        return items

    def indices(self, key: str) -> list[int]:
        """A list of whole numbers; empty where the key is missing or null."""
        items = self.items(key) or []
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.error(f"{key}: must be a list of whole numbers")
        return items

    def section(self, key: str) -> Config | None:
        """A nested object, or ``None`` where the key is missing or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{key} = {_short(value)}: must be an object")
        return Config(value, self.name)

    def refuse(self, key: str, *accepted: object) -> None:
        """Refuse a value that changes the shape in a way that is not known here."""
        value = self.values.get(key)
        if value is not None and value not in accepted:
            raise self.error(f"{key} = {_short(value)} is not supported: its shape is not known")


def read_config_file(path: Path) -> dict[str, Any]:
    """The JSON object in a ``config.json``, or in the one of a model's folder.

    ModelOpt checkpoints describe their quantisation in ``hf_quant_config.json`` beside it; it is
    read where the config itself says nothing.

    Raises:
        ServefitError: no such file, not JSON, or not an object.
    """
    file = path / "config.json" if path.is_dir() else path
    values = _read_json_object(file)
    beside = file.with_name("hf_quant_config.json")
    if file.name == "config.json" and "quantization_config" not in values and beside.is_file():
        values["quantization_config"] = _read_json_object(beside)
    return values


def _read_json_object(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise ServefitError(f"{file}: too large for a config, expected a config.json")
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ServefitError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ServefitError(f"{file}: is not JSON, expected a HuggingFace config.json") from error
    if not isinstance(values, dict):
        raise ServefitError(f"{file}: is not a JSON object, expected a HuggingFace config.json")
    return values


def _short(value: object) -> str:
    """A value as JSON-like text, cut to a line."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
