"""``servefit models``: the built-in models, or one model's shape and what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from servefit.cli.common import echo_json, json_option, print_table

if TYPE_CHECKING:
    from servefit.models import AttentionGroup, ModelShape

_CONTEXTS = (1024, 8192, 32768, 131072)


@click.command(
    epilog="Examples: `servefit models Qwen3-32B`; `servefit models ~/models/mine/config.json "
    "--kv-cache-dtype fp8 --tensor-parallel-size 4 --json`."
)
@click.argument("name_or_path", required=False)
@click.option("--dtype", metavar="DTYPE", help="Weights in this format instead of the config's.")
@click.option("--kv-cache-dtype", metavar="DTYPE", help="KV cache in this format, such as fp8.")
@click.option(
    "--tensor-parallel-size", type=click.IntRange(min=1), default=1, help="For KV bytes by rank."
)
@json_option
def command(
    name_or_path: str | None,
    dtype: str | None,
    kv_cache_dtype: str | None,
    tensor_parallel_size: int,
    as_json: bool,
) -> None:
    """List the built-in models, or show one model's shape.

    NAME_OR_PATH is a name from the list (with or without its organisation), or the path of a
    HuggingFace config.json or of the folder that holds it.
    """
    from servefit.models import get_model, list_models

    if name_or_path is None:
        _list([(entry.shape(), entry.variants) for entry in list_models()], as_json)
        return
    shape = get_model(name_or_path).with_dtypes(dtype, kv_cache_dtype)
    if as_json:
        echo_json(describe(shape, tensor_parallel_size))
    else:
        _show(shape, tensor_parallel_size)


def describe(shape: ModelShape, tensor_parallel_size: int = 1) -> dict[str, Any]:
    """A shape and everything derived from it, for JSON; bytes and numbers, no units scaled."""
    from dataclasses import asdict

    return {
        "name": shape.name,
        "architecture": shape.architecture,
        "source": shape.source,
        "notes": shape.notes,
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "kv_width": shape.kv_width,
        "ffn_size": shape.ffn_size,
        "num_ffn_matrices": shape.num_ffn_matrices,
        "ffn_ratio": shape.ffn_ratio,
        "vocab_size": shape.vocab_size,
        "tied_embeddings": shape.tied_embeddings,
        "experts": shape.experts and asdict(shape.experts),
        "weight_dtype": shape.weight_dtype,
        "kv_cache_dtype": shape.kv_cache_dtype,
        "num_parameters": shape.num_parameters,
        "num_active_parameters": shape.num_active_parameters,
        "num_matmul_parameters": shape.num_matmul_parameters,
        "parameters_by_part": asdict(shape.parameters),
        "weight_bytes": shape.weight_bytes,
        "weight_bytes_by_part": asdict(shape.weight_bytes_by_part),
        "streamed_weight_bytes_one_token": float(shape.streamed_weight_bytes(1)),
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "kv_bytes_per_token_beyond_windows": shape.kv_bytes_per_token_beyond_windows,
        "tensor_parallel_size": tensor_parallel_size,
        "kv_bytes_per_token_on_rank": shape.kv_bytes_per_token_on_rank(tensor_parallel_size),
        "kv_bytes_by_context": {str(c): float(shape.kv_bytes(c)) for c in _CONTEXTS},
        "state_bytes_per_request": shape.state_bytes_per_request,
        "attention": [
            {**asdict(group), "kv_bytes_per_token": _group_bytes(shape, group)}
            for group in shape.attention
        ],
        "recurrent": [asdict(group) for group in shape.recurrent],
    }


def _list(models: list[tuple[ModelShape, tuple[str, ...]]], as_json: bool) -> None:
    if as_json:
        echo_json([{**describe(shape), "variants": variants} for shape, variants in models])
        return
    print_table(
        [
            "model",
            "parameters",
            "layers",
            "hidden",
            "query/KV heads",
            "head",
            "KV/token",
            "weights",
        ],
        [
            (
                shape.name,
                _count(shape.num_parameters),
                shape.num_layers,
                shape.hidden_size,
                f"{shape.num_attention_heads}/{shape.num_kv_heads}",
                shape.head_size,
                _bytes(shape.kv_bytes_per_token),
                _bytes(shape.weight_bytes),
            )
            for shape, _ in models
        ],
        left=("model",),
    )
    click.echo("Any other model: give the path of its config.json or of its folder.")


def _show(shape: ModelShape, tensor_parallel_size: int) -> None:
    rows: list[tuple[str, str]] = [
        ("architecture", shape.architecture),
        ("layers", str(shape.num_layers)),
        ("hidden size", f"{shape.hidden_size:,}"),
        ("FFN", _ffn(shape)),
        ("vocabulary", f"{shape.vocab_size:,}{', tied' if shape.tied_embeddings else ''}"),
        ("parameters", _parameters(shape)),
        ("weights", f"{_bytes(shape.weight_bytes)} ({shape.weight_dtype})"),
        ("read by a decode step", f"{_bytes(float(shape.streamed_weight_bytes(1)))} for one token"),
    ]
    rows += [(_attention(group), _group_text(shape, group)) for group in shape.attention]
    rows += [
        (f"{group.num_layers} x {group.kind}", f"{_bytes(group.bytes_per_request)} a request")
        for group in shape.recurrent
    ]
    if shape.attention:
        rows.append(("KV cache", _kv(shape, tensor_parallel_size)))
        held = ", ".join(f"{_bytes(float(shape.kv_bytes(c)))} at {c:,}" for c in _CONTEXTS)
        rows.append(("KV of a request", f"{held} tokens"))
    rows += [("source", shape.source), *(("note", note) for note in shape.notes)]
    print_table(["property", "value"], rows, title=shape.name, left=("property", "value"))


def _attention(group: AttentionGroup) -> str:
    window = f", window {group.window_tokens:,}" if group.window_tokens else ""
    kind = "MLA" if group.latent_size else "attention"
    return f"{group.num_layers} x {kind}{window}"


def _group_text(shape: ModelShape, group: AttentionGroup) -> str:
    if group.latent_size:
        heads = f"{group.num_query_heads} query heads, latent of {group.latent_size}"
    else:
        heads = f"{group.num_query_heads} query / {group.num_kv_heads} KV heads of "
        heads += f"{group.head_size}"
    if not group.owns_cache:
        return f"{heads}: reads the cache of earlier layers"
    return f"{heads}: {_bytes(_group_bytes(shape, group))} a token"


def _group_bytes(shape: ModelShape, group: AttentionGroup) -> float:
    from servefit.dtypes import bytes_per_number

    numbers = group.num_layers * group.kv_numbers_per_token
    return numbers * bytes_per_number(shape.kv_cache_dtype)


def _kv(shape: ModelShape, tensor_parallel_size: int) -> str:
    text = f"{_bytes(shape.kv_bytes_per_token)} a token ({shape.kv_cache_dtype})"
    if shape.kv_bytes_per_token_beyond_windows != shape.kv_bytes_per_token:
        text += f", {_bytes(shape.kv_bytes_per_token_beyond_windows)} beyond the windows"
    if tensor_parallel_size > 1:
        on_rank = shape.kv_bytes_per_token_on_rank(tensor_parallel_size)
        text += f", {_bytes(on_rank)} on each of {tensor_parallel_size} ranks"
    return text


def _ffn(shape: ModelShape) -> str:
    text = f"{shape.ffn_size:,}, {shape.num_ffn_matrices} matrices" if shape.ffn_size else ""
    if shape.experts:
        mixture = shape.experts
        text += f"{'; ' if text else ''}{mixture.num_layers} layers with {mixture.num_experts}"
        text += f" experts of {mixture.ffn_size:,}, {mixture.experts_per_token} a token"
        text += f", shared {mixture.shared_ffn_size:,}" if mixture.shared_ffn_size else ""
    return f"{text}; r_ff {shape.ffn_ratio:.4g}" if text else "none"


def _parameters(shape: ModelShape) -> str:
    text = f"{_count(shape.num_parameters)} ({shape.num_parameters:,})"
    if shape.experts:
        text += f", {_count(shape.num_active_parameters)} active"
    return text


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.0f} M"


def _bytes(size: float) -> str:
    from servefit.units import format_bytes

    return format_bytes(size)
