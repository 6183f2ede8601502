"""Model families: one builder for each ``model_type``.

A family that is not listed is refused by name; nothing is guessed from likeness.
"""

from __future__ import annotations

from collections.abc import Callable

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families import dense, hybrid, latent, mixtures

#: ``model_type`` of a config -> builder.
FAMILIES: dict[str, Callable[[Config], Blueprint]] = {
    "bamba": hybrid.bamba,
    "deepseek_v2": latent.deepseek_v2,
    "deepseek_v3": latent.deepseek_v3,
    "falcon": dense.falcon,
    "falcon_h1": hybrid.falcon_h1,
    "falcon_mamba": hybrid.mamba,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "gemma4_text": mixtures.gemma4,
    "gpt_oss": mixtures.gpt_oss,
    "granite": dense.llama,
    "granitemoe": mixtures.granite_moe,
    "granitemoehybrid": hybrid.granite_hybrid,
    "jamba": hybrid.jamba,
    "kimi_k2": latent.deepseek_v3,
    "llama": dense.llama,
    "llama4_text": mixtures.llama4,
    "mamba": hybrid.mamba,
    "mamba2": hybrid.mamba2,
    "minimax_m2": mixtures.minimax_m2,
    "mistral": dense.mistral,
    "mixtral": mixtures.mixtral,
    "nemotron-nas": dense.nemotron_nas,
    "nemotron_h": hybrid.nemotron_h,
    "opt": dense.opt,
    "phi": dense.phi,
    "phi3": dense.mistral,
    "phimoe": mixtures.phimoe,
    "qwen2": dense.qwen2,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3": dense.qwen3,
    "qwen3_5_moe_text": hybrid.qwen3_next,
    "qwen3_5_text": hybrid.qwen3_5,
    "qwen3_moe": mixtures.qwen3_moe,
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_vl_moe_text": mixtures.qwen3_moe,
    "qwen3_vl_text": dense.qwen3,
}

#: Families whose config class has the same defaults as another's.
SAME_DEFAULTS = {"kimi_k2": "deepseek_v3"}
