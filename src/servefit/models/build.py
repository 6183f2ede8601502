"""From a HuggingFace config to a `ModelShape`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servefit.models.config import Config, read_config_file
from servefit.models.families import FAMILIES
from servefit.models.shape import ModelShape


def shape_from_config(
    values: Mapping[str, Any], name: str, *, source: str = "config.json"
) -> ModelShape:
    """The shape of the model that a decoded ``config.json`` describes.

    Args:
        values: the JSON object.
        name: what to call the model.
        source: where the config comes from.

    Raises:
        ServefitError: the family or quantisation is not known, or a value is missing or impossible.
    """
    config = Config(values, name)
    architecture = config.text("model_type", "")
    if architecture not in FAMILIES:
        raise config.error(
            f"architecture {architecture or 'without model_type'} is not known; known are "
            + ", ".join(sorted(FAMILIES))
        )
    return FAMILIES[architecture](config).shape(architecture, source)


def shape_from_file(path: Path, name: str | None = None) -> ModelShape:
    """The shape from a ``config.json`` or the folder that holds it, named after the folder."""
    folder = path if path.is_dir() else path.parent
    values = read_config_file(path)
    return shape_from_config(values, name or folder.resolve().name, source=str(path))
