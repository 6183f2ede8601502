"""From a HuggingFace config to a `ModelShape`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError
from servefit.models.config import Config, read_config_file
from servefit.models.families import FAMILIES, SAME_DEFAULTS
from servefit.models.shape import ModelShape

#: Keys that a multimodal config may give for its language model as well.
SHARED_KEYS = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")


def shape_from_config(
    values: Mapping[str, Any], name: str, *, source: str = "config.json"
) -> ModelShape:
    """The shape of the model that a decoded ``config.json`` describes.

    Of a multimodal model it is its language model's, from ``text_config``.

    Args:
        values: the JSON object.
        name: what to call the model.
        source: where the config comes from.

    Raises:
        ServefitError: the family or quantisation is not known, or a value is missing or impossible.
    """
    if not isinstance(values, Mapping):
        raise ServefitError(f"config of {name!r}: is not a JSON object")
    outer = Config(values, name)
    text = outer.section("text_config")
    if text is None:
        return _shape(values, name, source, nested=False)
    own = {key: value for key, value in text.values.items() if value is not None}
    shared = {key: values[key] for key in SHARED_KEYS if key in values}
    shape = _shape({**text.values, **shared, **own}, name, source, nested=True)
    return shape.with_note("only its language model is counted, no vision or audio encoder")


def shape_from_file(path: Path, name: str | None = None) -> ModelShape:
    """The shape from a ``config.json`` or the folder that holds it.

    It is named after the folder, or after the file where that has a name of its own
    (``NAME_config.json``, ``NAME.json``).
    """
    values = read_config_file(path)
    own = path.stem.removesuffix("config").rstrip("_-.")
    folder = path if path.is_dir() else path.parent
    is_plain = path.is_dir() or not own
    name = name or (folder.resolve().name if is_plain else own)
    return shape_from_config(values, name, source=str(path))


def _shape(values: Mapping[str, Any], name: str, source: str, *, nested: bool) -> ModelShape:
    architecture = Config(values, name).text("model_type")
    if architecture not in FAMILIES:
        named = repr(architecture[:60]) if architecture else "without model_type"
        raise ServefitError(
            f"config of {name!r}: architecture {named} is not known; known are "
            + ", ".join(sorted(FAMILIES))
        )
    defaults = _class_defaults()[SAME_DEFAULTS.get(architecture, architecture)]
    config = Config(values, name, defaults, nested=nested)
    return FAMILIES[architecture](config).shape(architecture, source)


@cache
def _class_defaults() -> dict[str, dict[str, Any]]:
    file = resources.files("servefit.models").joinpath("class_defaults.toml")
    return tomllib.loads(file.read_text("utf-8"))
