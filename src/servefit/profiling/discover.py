"""Finding out what a server is, from what it exposes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.profiling.client import Client
from servefit.profiling.engines import (
    MAX_VALUE,
    canonical_engine,
    count_engines,
    read_cache_config,
    read_metrics,
    recognise,
)
from servefit.profiling.patience import Patience, passes
from servefit.profiling.replies import Reply
from servefit.profiling.server import SETTINGS, Server

#: Who owns a model, by ``/v1/models`` -> engine.
OWNERS: Mapping[str, str] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}

#: Settings that are positive whole numbers; the others are words.
COUNTS = (
    "data_parallel_size",
    "tensor_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "kv_capacity_tokens",
)


async def discover(
    client: Client,
    *,
    model: str | None = None,
    given: Mapping[str, Any] | None = None,
    metrics_url: str = "/metrics",
    patience: Patience | None = None,
) -> Server:
    """Find out what a server is.

    Args:
        client: connections to it.
        model: which of several models to use.
        given: settings told by the user; they win over what the server says, except that a
            contradiction is refused.
        metrics_url: where its metrics are, if not at ``/metrics`` of the same address.
        patience: how often it is asked again where it fails for a moment.

    Raises:
        ServefitError: it does not answer, serves no or several models, or contradicts ``given``.
    """
    patience = patience or Patience(client)
    card = await _model_card(patience, model)
    page, version, info = await asyncio.gather(
        patience.optional(metrics_url), _first_json(patience, "/version"), _engine_info(patience)
    )
    text = page.text if page is not None and page.status == 200 else ""
    shown = recognise(text)
    engine = shown or info.get("engine") or OWNERS.get(str(card.get("owned_by")))
    found: dict[str, Any] = {k: _sound(k, v) for k, v in info.items()} | {"engine": engine}
    if engine == "vllm" and isinstance(version.get("version"), str):
        found["engine_version"] = version["version"]
    if shown is not None:
        found.update(_from_metrics(text, shown, card["id"]))
    for name in ("dtype", "kv_cache_dtype"):
        if found.get(name) is not None:
            found[name] = _known_dtype(str(found[name]))
    for name, value in (given or {}).items():
        if value is None:
            continue
        if name == "engine":
            value = canonical_engine(value)
        seen = found.get(name)
        if seen is not None and str(seen) != str(value):
            raise ServefitError(
                f"{SETTINGS.get(name, name)} {value}: the server says {seen}: leave it out"
            )
        found[name] = value
    if found.get("data_parallel_size") == 1:
        del found["data_parallel_size"]
    length = found.pop("max_model_len", None)
    length = _sound("max_model_len", card.get("max_model_len")) or length
    return Server(
        model=card["id"],
        engine=found.get("engine"),
        settings={k: v for k, v in found.items() if v is not None},
        max_model_len=int(length) if isinstance(length, int) else None,
        metrics_url=metrics_url if shown is not None else None,
        notes=tuple(_notes(page, metrics_url, found.get("data_parallel_size"))),
    )


def _notes(page: Reply | None, metrics_url: str, engines: int | None) -> Iterator[str]:
    """What to say of metrics that are there but cannot be had, and of several engines."""
    if page is None or passes(page.status):
        why = "does not answer" if page is None else f"answers HTTP {page.status}"
        yield f"{metrics_url} {why}: what the server tells of itself there is unknown"
    if engines is not None:
        yield (
            f"{engines} data-parallel engines share the load: rows are of all of them together, "
            "and no law of one engine holds"
        )


def _known_dtype(name: str) -> str | None:
    """The canonical name; ``None`` for words such as ``auto``."""
    try:
        return canonical_dtype(name)
    except ServefitError:
        return None


def _sound(name: str, value: Any) -> Any:
    """A setting as a server tells it; ``None`` where it is of no kind that the setting can be."""
    if name not in COUNTS:
        return value if isinstance(value, str) else None
    return value if type(value) is int and 0 < value <= MAX_VALUE else None


async def _model_card(patience: Patience, model: str | None) -> dict[str, Any]:
    client, reply = patience.client, await patience.query("/v1/models")
    if reply is None:
        raise ServefitError(
            f"{client.url}: no answer ({client.failure}): is the server running, and is this its "
            "URL?"
        )
    if reply.astray is not None:
        raise ServefitError(f"{client.url}: {client.redact(reply.astray)}")
    body = reply.json()
    cards = body.get("data") if isinstance(body, dict) else None
    cards = cards if isinstance(cards, list) else []
    cards = [c for c in cards if isinstance(c, dict) and isinstance(c.get("id"), str)]
    if reply.status in (401, 403):
        raise ServefitError(
            f"{client.url}: HTTP {reply.status}: the API key is missing or wrong: put it into the "
            "environment variable SERVEFIT_API_KEY, or name another with --api-key-env"
        )
    if passes(reply.status):
        raise ServefitError(
            f"{client.url}: HTTP {reply.status} to every question: the server is too busy or not "
            "ready: try again later"
        )
    if model is not None and not cards:
        return {"id": model}
    names = [c["id"] for c in cards]
    if model is not None and model not in names:
        raise ServefitError(f"--model {model}: the server has {', '.join(names)}")
    if len(cards) != 1 and model is None:
        what = f"several models, {', '.join(names)}"
        if not names:
            what = f"no list of models (HTTP {reply.status})"
        raise ServefitError(f"{client.url}: has {what}: name one with --model")
    return next(c for c in cards if model is None or c["id"] == model)


async def _first_json(patience: Patience, *paths: str) -> dict[str, Any]:
    """The first of the paths that answers with a JSON object; empty where none does."""
    for path in paths:
        reply = await patience.optional(path)
        body = reply.json() if reply is not None and reply.status == 200 else None
        if isinstance(body, dict):
            return body
    return {}


async def _engine_info(patience: Patience) -> dict[str, Any]:
    """Settings from the route that each engine has for them."""
    sglang, llama, tgi, vllm = await asyncio.gather(
        _first_json(patience, "/get_server_info", "/server_info"),
        _first_json(patience, "/props"),
        _first_json(patience, "/info"),
        _first_json(patience, "/server_info?config_format=json"),
    )
    if "total_slots" in llama:
        return {
            "engine": "llama.cpp",
            "engine_version": llama.get("build_info"),
            "max_num_seqs": llama["total_slots"],
        }
    if "max_total_tokens" in tgi or ("model_id" in tgi and "version" in tgi):
        return {
            "engine": "tgi",
            "engine_version": tgi.get("version"),
            "dtype": tgi.get("model_dtype"),
            "max_model_len": tgi.get("max_total_tokens"),
        }
    config = vllm.get("vllm_config")
    if isinstance(config, dict):
        return _from_vllm_config(config)
    return _from_sglang(sglang) if "max_running_requests" in sglang else {}


def _from_sglang(info: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of SGLang's ``/get_server_info``.

    The argument ``max_running_requests`` is mostly left to SGLang, which tells the seats of each
    engine among its states. With several engines it does not say whether that argument and the KV
    cache are those of one: left out.
    """
    several = info.get("dp_size") not in (None, 1)
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else None
    seats = None if several else info["max_running_requests"]
    if isinstance(state, dict):
        seats = state.get("effective_max_running_requests_per_dp", seats)
    return {
        "engine": "sglang",
        "engine_version": info.get("version"),
        "tensor_parallel_size": info.get("tp_size"),
        "data_parallel_size": info.get("dp_size"),
        "max_num_seqs": seats,
        "max_num_batched_tokens": info.get("chunked_prefill_size"),
        "kv_capacity_tokens": None if several else info.get("max_total_num_tokens"),
        "attention_backend": info.get("attention_backend"),
    }


def _from_vllm_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``/server_info``, which vLLM has in its development mode."""

    def get(section: str, name: str) -> Any:
        values = config.get(section)
        value = values.get(name) if isinstance(values, dict) else None
        return value if isinstance(value, int | str) else None

    return {
        "engine": "vllm",
        "dtype": (str(get("model_config", "dtype") or "").removeprefix("torch.")) or None,
        "tensor_parallel_size": get("parallel_config", "tensor_parallel_size"),
        "data_parallel_size": get("parallel_config", "data_parallel_size"),
        "max_num_seqs": get("scheduler_config", "max_num_seqs"),
        "max_num_batched_tokens": get("scheduler_config", "max_num_batched_tokens"),
    }


def _from_metrics(text: str, engine: str, model: str) -> dict[str, Any]:
    """KV-cache size, of all engines together, and seats, of each, as ``/metrics`` shows them."""
    values: dict[str, Any] = {}
    engines = count_engines(text, model)
    if engines > 1:
        values["data_parallel_size"] = engines
    labels = read_cache_config(text)
    numbers = read_metrics(text, engine, model)
    for name in ("num_gpu_blocks", "block_size", "kv_capacity_tokens", "max_num_seqs"):
        label = labels.get(name, "")
        if label.isdecimal() and int(label) > 0:
            values[name] = int(label)
        elif numbers.get(name, 0) > 0:
            values[name] = int(numbers[name])
    if "num_gpu_blocks" in values and "block_size" in values:
        values["kv_capacity_tokens"] = values["num_gpu_blocks"] * values["block_size"]
    each = labels.get("kv_cache_size_tokens", "")  # blocks of a hybrid model hold fewer tokens
    if each.isdecimal() and int(each) > 0:
        values["kv_capacity_tokens"] = int(each) * engines
    try:
        share = float(labels.get("gpu_memory_utilization", ""))
    except ValueError:
        share = -1.0
    if 0 < share <= 1:
        values["gpu_memory_utilization"] = share
    if labels.get("cache_dtype", "auto") != "auto":
        values["kv_cache_dtype"] = labels["cache_dtype"]
    if labels.get("enable_prefix_caching") in ("True", "False"):
        values["prefix_caching"] = labels["enable_prefix_caching"] == "True"
    return values
