"""Finding out by tiny requests what a server accepts, and how to write prompts for it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

from servefit.errors import ServefitError
from servefit.profiling.client import PATHS, Client, Endpoint
from servefit.profiling.patience import Patience
from servefit.profiling.prompts import TOKEN_IDS, WORDS, Prompts, TokenIdPrompts, learn_words
from servefit.profiling.record import Ask, Record
from servefit.profiling.server import EXTRAS, Server

PROBE_TOKENS = 16
#: Forms of request in the order of preference: the route, and whether prompts are token ids.
FORMS: Sequence[tuple[Endpoint, bool]] = (
    ("completions", True),
    ("completions", False),
    ("chat", False),
)
#: Ways to refuse a form of request, besides counting its tokens wrong. After any other failure
#: another form is not tried: it would hide the failure, and measure another thing.
REFUSALS = (
    *(f"http_{status}" for status in (400, 404, 405, 413, 415, 422, 501)),
    "content_type",
    "empty",
)


async def probe(
    client: Client,
    server: Server,
    *,
    chat: bool | None = None,
    token_ids: bool | None = None,
    patience: Patience | None = None,
) -> Server:
    """Find out by tiny requests what the server accepts: the route, token ids, `EXTRAS`.

    Args:
        client: connections to it.
        server: as discovered.
        chat: use the chat route; ``None``: only if there is no other.
        token_ids: prompts are token ids, not text; ``None``: where they are taken.
        patience: how often it is asked again where it fails for a moment.

    Raises:
        ServefitError: no form of request is answered (the reason of the first is named), or the
            server fails or hangs for longer than patience lasts.
    """
    patience = patience or Patience(client)
    forms = [
        (endpoint, ids)
        for endpoint, ids in FORMS
        if chat in (None, endpoint == "chat") and token_ids in (None, ids)
    ]
    refusal = "takes no token ids"
    for endpoint, ids in forms:
        form = replace(server, endpoint=endpoint, token_ids=ids, extras=())
        accepted = await _accepted_extras(patience, form)
        if not isinstance(accepted, str):
            return accepted
        refusal = accepted if (endpoint, ids) == forms[0] else refusal
    routes = dict.fromkeys(PATHS[endpoint] for endpoint, _ in forms) or PATHS.values()
    raise ServefitError(f"{client.url}: {' and '.join(routes)}: {refusal}")


async def _accepted_extras(patience: Patience, form: Server) -> Server | str:
    """The form of request with all of `EXTRAS` that it takes, or why it is refused."""
    everything = replace(form, extras=tuple(EXTRAS))
    record = await _try(patience, everything)
    if _fits(everything, record):
        return _with_notes(everything, record)
    refusal = record.detail or f"counts {record.input_tokens} tokens instead of {PROBE_TOKENS}"
    if record.error not in ("http_400", "http_422"):
        return refusal
    record = await _try(patience, form)
    if not _fits(form, record):
        return refusal
    for name in EXTRAS:
        trial = replace(form, extras=(*form.extras, name))
        found = await _try(patience, trial)
        if _fits(trial, found):
            form, record = trial, found
    return _with_notes(form, record)


async def _try(patience: Patience, server: Server) -> Record:
    """Send a tiny request; raises `ServefitError` where it fails otherwise than by a refusal."""
    prompt = list(TOKEN_IDS[:PROBE_TOKENS]) if server.token_ids else "What time is it?"
    record = await patience.generate(server, json.dumps(prompt), Ask(PROBE_TOKENS, 2))
    if record.outcome != "completed" and record.error not in REFUSALS:
        route = PATHS[server.endpoint]
        text = f"{patience.client.url}: {route}: {record.error}: {record.detail}"
        if server.token_ids:  # which this server may not be made for
            text += ": if that is the list of token ids, try --prompts text"
        raise ServefitError(text)
    return record


def _fits(server: Server, record: Record) -> bool:
    """Whether the answer is whole and, for token ids, the prompt was taken as they are."""
    taken = not server.token_ids or record.input_tokens in (None, PROBE_TOKENS)
    return record.outcome == "completed" and taken


def _with_notes(server: Server, record: Record) -> Server:
    notes = list(server.notes)
    if record.output_tokens is None:
        notes.append("answers carry no usage: lengths are taken as asked")
    elif not any(record.chunk_tokens):
        notes.append("chunks carry no token counts: ITL is per chunk")
    if "ignore_eos" not in server.extras:
        notes.append("ignore_eos is refused: answers may end early")
    return replace(server, notes=tuple(notes))


async def make_prompts(
    client: Client, server: Server, rng: random.Random, *, patience: Patience | None = None
) -> Prompts:
    """Where prompts of an exact length come from: token ids, else text by the server's count.

    Raises:
        ServefitError: the server neither takes token ids nor counts tokens.
    """
    patience = patience or Patience(client)
    if server.token_ids:
        return TokenIdPrompts([str(i) for i in await _known_ids(patience, server)], rng)

    async def by_usage(text: str) -> int | None:
        return (await patience.generate(server, json.dumps(text), Ask(0, 1))).input_tokens

    async def by_tokenizer(text: str) -> int | None:
        ids = await _tokenize(patience, server, text)
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


async def _known_ids(patience: Patience, server: Server) -> Sequence[int]:
    """Ids of ordinary tokens: those of common words, where the server tells them."""
    ids = await _tokenize(patience, server, " " + " ".join(WORDS))
    distinct = sorted(set(ids or ()))
    return distinct if len(distinct) >= len(WORDS) // 2 else TOKEN_IDS


async def _tokenize(patience: Patience, server: Server, text: str) -> Sequence[int] | None:
    """Token ids of a text by ``/tokenize`` of vLLM, SGLang, llama.cpp or TGI."""
    body = {"model": server.model, "prompt": text, "content": text, "inputs": text}
    reply = await patience.optional("/tokenize", body)
    found = reply.json() if reply is not None and reply.status == 200 else None
    ids = found.get("tokens") if isinstance(found, dict) else found
    if not isinstance(ids, list):
        return None
    ids = [i.get("id") if isinstance(i, dict) else i for i in ids]
    return ids if all(isinstance(i, int) for i in ids) else None
