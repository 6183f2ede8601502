"""Models: their shape, from a HuggingFace config or from the built-in catalogue."""

from servefit.models.build import shape_from_config
from servefit.models.catalogue import CatalogueModel, get_model, list_models
from servefit.models.parts import AttentionGroup, Experts, Parts, RecurrentGroup
from servefit.models.shape import ModelShape

__all__ = [
    "AttentionGroup",
    "CatalogueModel",
    "Experts",
    "ModelShape",
    "Parts",
    "RecurrentGroup",
    "get_model",
    "list_models",
    "shape_from_config",
]
