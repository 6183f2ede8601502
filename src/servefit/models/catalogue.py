"""The built-in catalogue of models: names, config keys and where they were read."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from servefit.errors import ServefitError
from servefit.models.build import shape_from_config, shape_from_file
from servefit.models.shape import ModelShape


@dataclass(frozen=True)
class CatalogueModel:
    """One entry of ``catalogue.toml``.

    Attributes:
        name: the HuggingFace repository, ``organisation/name``.
        variants: further names of models with the very same shape.
        source: where its config was read.
        config: the keys of its ``config.json`` that the shape needs.
    """

    name: str
    variants: tuple[str, ...]
    source: str
    config: MappingProxyType[str, Any] = field(hash=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its variants."""
        return (self.name, *self.variants)

    def shape(self, name: str | None = None) -> ModelShape:
        """The shape, under another of its names if asked."""
        return shape_from_config(self.config, name or self.name, source=self.source)


@cache
def list_models() -> tuple[CatalogueModel, ...]:
    """The built-in models, in the order of the catalogue file."""
    text = resources.files("servefit.models").joinpath("catalogue.toml").read_text("utf-8")
    return tuple(
        CatalogueModel(
            name=entry["name"],
            variants=tuple(entry.get("variants", ())),
            source=entry["source"],
            config=MappingProxyType(dict.fromkeys(entry.get("null", ())) | entry["config"]),
        )
        for entry in tomllib.loads(text)["model"]
    )


def get_model(name_or_path: str | Path) -> ModelShape:
    """A model's shape by name, or from the path of a ``config.json`` or of its folder.

    Names match without regard to case and with or without their organisation. A quantised
    variant is another model: it is only known by the path of its config.

    Raises:
        ServefitError: neither a known name nor a readable config.
    """
    path = Path(name_or_path)
    try:
        is_path = path.suffix == ".json" or (path / "config.json").is_file() or path.is_file()
    except (OSError, ValueError):
        is_path = False
    if is_path:
        return shape_from_file(path)
    return _named(str(name_or_path).strip())


@cache
def _named(name: str) -> ModelShape:
    found = _index().get(name.lower())
    if found is None:
        raise ServefitError(_unknown(name))
    entry, full_name = found
    return entry.shape(full_name)


@cache
def _index() -> dict[str, tuple[CatalogueModel, str]]:
    """Every accepted spelling in lower case, with the entry and the full name that it means."""
    index: dict[str, tuple[CatalogueModel, str]] = {}
    for entry in list_models():
        for name in entry.names:
            index[name.lower()] = entry, name
            index.setdefault(name.lower().rpartition("/")[2], (entry, name))
    return index


def _unknown(name: str) -> str:
    if Path(name).is_dir():
        return f"folder {name!r} holds no config.json: give the path of the model's config.json"
    spellings = {full.rpartition("/")[2].lower(): full for m in list_models() for full in m.names}
    close = difflib.get_close_matches(name.lower().rpartition("/")[2], spellings, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(spellings[match] for match in close)}? " if close else ""
    return (
        f"model {name!r} is not in the catalogue: {hint}"
        "`servefit models` lists all; any other model is read from the path of its config.json"
    )
