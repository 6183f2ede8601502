"""Finding out by tiny requests what a server accepts, and how to write prompts for it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace

from servefit.errors import ServefitError
from servefit.profiling.client import PATHS, Client, Endpoint
from servefit.profiling.prompts import TOKEN_IDS, WORDS, Prompts, TokenIdPrompts, learn_words
from servefit.profiling.record import Ask, Record
from servefit.profiling.server import EXTRAS, Server

PROBE_TOKENS = 16
PROBE_TIMEOUT_S = 120.0


async def probe(client: Client, server: Server, *, chat: bool | None = None) -> Server:
    """Find out by tiny requests what the server accepts: the route, token ids, `EXTRAS`.

    Args:
        client: connections to it.
        server: as discovered.
        chat: use the chat route; ``None``: only if there is no other.

    Raises:
        ServefitError: no form of request is answered; the reason of the first is named.
    """
    endpoints: Sequence[Endpoint] = ("completions", "chat") if chat is None else ("chat",)
    if chat is False:
        endpoints = ("completions",)
    refusal = ""
    for endpoint in endpoints:
        for ids in (True, False) if endpoint == "completions" else (False,):
            form = replace(server, endpoint=endpoint, token_ids=ids, extras=())
            accepted = await _accepted_extras(client, form)
            if not isinstance(accepted, str):
                return accepted
            refusal = refusal or accepted
    raise ServefitError(f"{client.url}: {' and '.join(PATHS[e] for e in endpoints)}: {refusal}")


async def _accepted_extras(client: Client, form: Server) -> Server | str:
    """The form of request with all of `EXTRAS` that it takes, or why it is refused."""
    everything = replace(form, extras=tuple(EXTRAS))
    record = await _try(client, everything)
    if _fits(everything, record):
        return replace(everything, notes=_notes(everything, record))
    refusal = record.detail or f"counts {record.input_tokens} tokens instead of {PROBE_TOKENS}"
    if record.error not in ("http_400", "http_422"):
        return refusal
    record = await _try(client, form)
    if not _fits(form, record):
        return refusal
    for name in EXTRAS:
        trial = replace(form, extras=(*form.extras, name))
        found = await _try(client, trial)
        if _fits(trial, found):
            form, record = trial, found
    return replace(form, notes=_notes(form, record))


async def _try(client: Client, server: Server) -> Record:
    record = Record(Ask(PROBE_TOKENS, 2), 0.0)
    prompt = list(TOKEN_IDS[:PROBE_TOKENS]) if server.token_ids else "What time is it?"
    await _send(client, server, json.dumps(prompt), record)
    return record


def _fits(server: Server, record: Record) -> bool:
    """Whether the answer is whole and, for token ids, the prompt was taken as they are."""
    taken = not server.token_ids or record.input_tokens in (None, PROBE_TOKENS)
    return record.outcome == "completed" and taken


async def _send(client: Client, server: Server, prompt: str, record: Record) -> None:
    """One request with a time limit; raises `ServefitError` past it."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await client.generate(server.endpoint, server.body(prompt, record.ask), record)
    except TimeoutError:
        raise ServefitError(
            f"{client.url}: no answer to a request of {PROBE_TOKENS} tokens within "
            f"{PROBE_TIMEOUT_S:g} s: the server hangs"
        ) from None


def _notes(server: Server, record: Record) -> tuple[str, ...]:
    notes = []
    if record.output_tokens is None:
        notes.append("answers carry no usage: lengths are taken as asked")
    elif not any(record.chunk_tokens):
        notes.append("chunks carry no token counts: ITL is per chunk")
    if "ignore_eos" not in server.extras:
        notes.append("ignore_eos is refused: answers may end early")
    return tuple(notes)


async def make_prompts(client: Client, server: Server, rng: random.Random) -> Prompts:
    """Where prompts of an exact length come from: token ids, else text by the server's count.

    Raises:
        ServefitError: the server neither takes token ids nor counts tokens.
    """
    if server.token_ids:
        return TokenIdPrompts([str(i) for i in await _known_ids(client, server)], rng)

    async def by_usage(text: str) -> int | None:
        record = Record(Ask(0, 1), 0.0)
        await _send(client, server, json.dumps(text), record)
        return record.input_tokens

    async def by_tokenizer(text: str) -> int | None:
        ids = await _tokenize(client, server, text)
        return None if ids is None else len(ids)

    prompts = None
    if server.endpoint == "completions":
        prompts = await learn_words(by_tokenizer, rng)
    if prompts is None:
        prompts = await learn_words(by_usage, rng)
    if prompts is None:
        raise ServefitError(
            f"{client.url}: takes no token ids and has neither /tokenize nor usage: prompts of a "
            "known length cannot be built"
        )
    # What the tokenizer adds and what a request adds may differ (BOS): the request decides.
    counted = await by_usage(prompts.text(64))
    return (
        prompts if counted is None else replace(prompts, overhead=prompts.overhead + counted - 64)
    )


async def _known_ids(client: Client, server: Server) -> Sequence[int]:
    """Ids of ordinary tokens: those of common words, where the server tells them."""
    ids = await _tokenize(client, server, " " + " ".join(WORDS))
    distinct = sorted(set(ids or ()))
    return distinct if len(distinct) >= len(WORDS) // 2 else TOKEN_IDS


async def _tokenize(client: Client, server: Server, text: str) -> Sequence[int] | None:
    """Token ids of a text by ``/tokenize`` of vLLM, SGLang, llama.cpp or TGI."""
    body = {"model": server.model, "prompt": text, "content": text, "inputs": text}
    reply = await client.query("/tokenize", body)
    found = reply.json() if reply is not None and reply.status == 200 else None
    ids = found.get("tokens") if isinstance(found, dict) else found
    if not isinstance(ids, list):
        return None
    ids = [i.get("id") if isinstance(i, dict) else i for i in ids]
    return ids if all(isinstance(i, int) for i in ids) else None
