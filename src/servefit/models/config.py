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
MOST_LAYERS = 1_000
#: A config is a few kilobytes; one that lists each quantised expert reaches a few megabytes.
LARGEST_CONFIG_BYTES = 16 * 2**20
#: transformers writes these whenever it saves a config; only a nested one may leave them out.
ALWAYS_WRITTEN = frozenset(
    {
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "ffn_dim",
        "vocab_size",
    }
)


class Config:
    """A ``config.json`` whose values are checked as they are read.

    Where a key is missing, the default of the model's config class stands in. A null stays null.
    Methods that take several keys read the first one that the config has.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        name: str,
        defaults: Mapping[str, Any] | None = None,
        *,
        nested: bool = False,
    ) -> None:
        """Wrap a decoded JSON object.

        Args:
            values: the object.
            name: the model, for errors.
            defaults: of the config class.
            nested: whether it is part of a larger config, where every default may be left out.
        """
        self.values = values
        self.name = name
        self._defaults = defaults or {}
        self._nested = nested

    def __contains__(self, key: str) -> bool:
        """Whether the config itself has a value other than null."""
        return self.values.get(key) is not None

    def error(self, message: str) -> ServefitError:
        """An error about this config, to raise."""
        return ServefitError(f"config of {self.name!r}: {message}")

    def size(self, *keys: str, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A whole number within bounds; 1 or more unless ``least`` says otherwise."""
        key, value = self._find(keys)
        if value is None:
            state = "null" if key in self.values else "missing"
            raise self.error(f"{key} is {state}: the shape needs it, add it to the config")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{key} = {_short(value)}: must be a whole number")
        if not least <= value <= most:
            raise self.error(f"{key} = {_short(value)}: must lie between {least} and {most}")
        return value

    def optional_size(self, *keys: str, least: int = 1) -> int | None:
        """A whole number, or ``None`` where the key is null, or missing without a default."""
        return None if self._find(keys)[1] is None else self.size(*keys, least=least)

    def layers(self) -> int:
        """The number of layers."""
        return self.size("num_hidden_layers", most=MOST_LAYERS)

    def flag(self, key: str) -> bool:
        """True or false; false where the key is null or missing without a default."""
        value = self._find((key,))[1]
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} = {_short(value)}: must be true or false")
        return bool(value)

    def text(self, *keys: str) -> str:
        """A string; empty where the key is null or missing."""
        key, value = self._find(keys)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{key} = {_short(value)}: must be a string")
        return value or ""

    def number(self, key: str) -> float:
        """A positive finite number."""
        value = self._find((key,))[1]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key} = {_short(value)}: must be a number")
        if not 0 < value <= LARGEST_SIZE:
            raise self.error(f"{key} = {_short(value)}: must lie between 0 and {LARGEST_SIZE}")
        return float(value)

    def strings(self, *keys: str) -> list[str] | None:
        """A list of strings, or ``None`` where the key is null or missing."""
        items: list[str] | None = self._list(keys, str, "strings")
        return items

    def indices(self, *keys: str) -> list[int] | None:
        """A list of whole numbers, or ``None`` where the key is null or missing."""
        items: list[int] | None = self._list(keys, int, "whole numbers")
        return items

    def sections(self, key: str) -> list[Config]:
        """A list of objects; empty where the key is null or missing."""
        items = self._list((key,), Mapping, "objects") or []
        return [Config(item, f"{self.name}: {key}[{i}]") for i, item in enumerate(items)]

    def section(self, key: str) -> Config | None:
        """A nested object, or ``None`` where the key is null or missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{key} = {_short(value)}: must be an object")
        return Config(value, self.name)

    def refuse(self, key: str, why: str) -> None:
        """Refuse a key that is set (neither null nor false) and changes the shape unknowably."""
        value = self.values.get(key)
        if value is not None and value is not False:
            raise self.error(f"{key} = {_short(value)} is not supported: {why}")

    def _find(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        for key in keys:
            if key in self.values:
                return key, self.values[key]
        for key in keys:
            if key in self._defaults and (self._nested or key not in ALWAYS_WRITTEN):
                return key, self._defaults[key]
        return keys[0], None

    def _list(self, keys: tuple[str, ...], kind: type, kinds: str) -> Any:
        key, value = self._find(keys)
        if value is None:
            return None
        good = isinstance(value, list) and all(
            isinstance(item, kind) and not isinstance(item, bool) for item in value
        )
        if not good:
            raise self.error(f"{key} = {_short(value)}: must be a list of {kinds}")
        return value


def read_config_file(path: Path) -> dict[str, Any]:
    """The JSON object in a ``config.json``, or in the one of a model's folder.

    ModelOpt checkpoints describe their quantisation in ``hf_quant_config.json`` beside it; it is
    read where the config itself says nothing (as ``NAME_hf_quant_config.json`` beside
    ``NAME_config.json``).

    Raises:
        ServefitError: no such file, not JSON, or not an object.
    """
    file = path / "config.json" if path.is_dir() else path
    values = _read_json_object(file)
    if file.name.endswith("config.json") and values.get("quantization_config") is None:
        beside = file.with_name(file.name.removesuffix("config.json") + "hf_quant_config.json")
        if beside.is_file():
            values["quantization_config"] = _read_json_object(beside)
    return values


def _read_json_object(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise ServefitError(f"{file}: is too large for a HuggingFace config.json")
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ServefitError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ServefitError(f"{file}: is not JSON, expected a HuggingFace config.json") from error
    if not isinstance(values, dict):
        raise ServefitError(f"{file}: is not a JSON object, expected a HuggingFace config.json")
    return values


def _short(value: object) -> str:
    """A value as text, cut to a line."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
