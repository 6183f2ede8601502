"""Model families: one builder for each ``model_type``.

A family that is not listed is refused by name; nothing is guessed from likeness.
"""

from __future__ import annotations

from collections.abc import Callable

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families import (
    gated,
    gemma4,
    hybrid,
    latent,
    mixtures,
    nas,
    plain,
    recurrent,
)

#: ``model_type`` of a config -> builder.
FAMILIES: dict[str, Callable[[Config], Blueprint]] = {
    "bamba": hybrid.bamba,
    "deepseek_v2": latent.deepseek_v2,
    "deepseek_v3": latent.deepseek_v3,
    "falcon": plain.falcon,
    "falcon_h1": hybrid.falcon_h1,
    "falcon_mamba": recurrent.mamba,
    "gemma": gated.llama,
    "gemma2": gated.gemma2,
    "gemma3_text": gated.gemma3,
    "gemma4_text": gemma4.gemma4,
    "gpt_oss": mixtures.gpt_oss,
    "granite": gated.llama,
    "granitemoe": mixtures.granite_moe,
    "granitemoehybrid": hybrid.granite_hybrid,
    "jamba": hybrid.jamba,
    "kimi_k2": latent.deepseek_v3,
    "llama": gated.llama,
    "llama4_text": mixtures.llama4,
    "mamba": recurrent.mamba,
    "mamba2": recurrent.mamba2,
    "minimax_m2": mixtures.minimax_m2,
    "mistral": gated.mistral,
    "mixtral": mixtures.mixtral,
    "nemotron-nas": nas.nemotron_nas,
    "nemotron_h": hybrid.nemotron_h,
    "opt": plain.opt,
    "phi": plain.phi,
    "phi3": gated.mistral,
    "phimoe": mixtures.phimoe,
    "qwen2": gated.qwen2,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3": gated.qwen3,
    "qwen3_5_moe_text": hybrid.qwen3_next,
    "qwen3_5_text": hybrid.qwen3_5,
    "qwen3_moe": mixtures.qwen3_moe,
    "qwen3_next": hybrid.qwen3_next,
    "qwen3_vl_moe_text": mixtures.qwen3_moe,
    "qwen3_vl_text": gated.qwen3,
}

#: Families whose config class has the same defaults as another's.
SAME_DEFAULTS = {"kimi_k2": "deepseek_v3"}
