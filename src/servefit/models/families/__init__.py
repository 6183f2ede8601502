"""Model families: one builder for each ``model_type``.

A family that is not listed is refused by name; nothing is guessed from likeness.
"""

from __future__ import annotations

from collections.abc import Callable

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.llama import llama, mistral, qwen2, qwen3
from servefit.models.families.mixtral import mixtral
from servefit.models.families.opt import opt

#: ``model_type`` of a config -> builder.
FAMILIES: dict[str, Callable[[Config], Blueprint]] = {
    "granite": llama,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mixtral,
    "opt": opt,
    "qwen2": qwen2,
    "qwen3": qwen3,
}
