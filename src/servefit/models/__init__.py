"""Models: their shape, from a HuggingFace config or from the built-in catalogue."""

from servefit.models.shape import AttentionGroup, Experts, ModelShape

__all__ = ["AttentionGroup", "Experts", "ModelShape"]
