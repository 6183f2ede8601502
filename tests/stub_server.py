"""A scripted inference server: it speaks the OpenAI API and records what it truly sent, and when.

The engine is a loop of steps, as in continuous batching: each step takes ``step_s`` plus a share
for every running request and every prompt token that it prefills, and gives each running request
one token. Requests beyond ``seats`` wait in a queue. Times are ``time.perf_counter()``, which on
Linux is one clock for all processes, so that a client can be compared with the log.

Run as ``python stub_server.py``; it prints its port. ``POST /stub/script`` sets a new script and
empties the log; ``GET /stub/log`` returns the log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import os
import random
import ssl
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from stub_metrics import render_metrics

now = time.perf_counter
JSON = "application/json"
#: What else `Script.page_faults` say.
PAGE_HEADERS = {
    301: "Location: https://elsewhere.example/v1/models\r\n",
    429: "Retry-After: 0.1\r\n",
}


@dataclass
class Script:
    """How the server behaves."""

    seats: int | None = None
    step_s: float = 0.002
    step_per_request_s: float = 0.0
    prefill_token_s: float = 0.0
    tokens_per_chunk: int = 1
    first_chunk: str = "token"  # or "empty", "reasoning"
    usage: str = "continuous"  # or "final", "none"
    newline: str = "\n"
    split_data: bool = False  # one event over two `data:` lines
    comments: bool = False
    metrics: str | None = "vllm_v1"
    engines: int = 1  # or 2, in the metrics alone
    token_ids: bool = True
    vocabulary: int = 50_000
    tokenize: str | None = "vllm"
    unknown_fields: list[str] = field(default_factory=list)  # answered with 400
    api_key: str | None = None
    max_model_len: int = 4096
    cached: float = 0.0  # share of prompt tokens that the metrics call cached
    connection: str = "keep-alive"  # or "close", or "drop": closed 0.1 s after it is used again
    leaves_open: bool = False  # streams, after [DONE]
    gzip: bool = False  # the list of models, and the head of streams
    completion_tokens: Any = None  # told instead of the right count
    retry_after_s: float = 0.1  # told with 429
    faults: list[dict[str, Any]] = field(default_factory=list)
    #: path -> statuses of its first answers
    page_faults: dict[str, list[int]] = field(default_factory=dict)
    health: int = 200
    seed: int = 1


@dataclass
class Request:
    """One generation: what was asked, what became of it."""

    index: int
    prompt_tokens: int
    wanted: int
    received: float
    fault: str | None
    prompt_head: str
    admitted: float | None = None
    chunks: list[tuple[float, int]] = field(default_factory=list)
    finished: float | None = None
    outcome: str = "running"
    produced: int = 0
    pending: int = 0


class Engine:
    """Seats, a queue, and steps."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.random = random.Random(script.seed)
        self.queue: deque[Stream] = deque()
        self.running: list[Stream] = []
        self.wake = asyncio.Event()
        self.log: list[Request] = []
        self.refused = 0
        self.totals = dict.fromkeys(
            ["prompt", "generation", "queue_s", "done", "e2e_s", "prefill_s", "decode_s"], 0.0
        )

    async def run(self) -> None:
        s = self.script
        end = now()
        while True:
            if not self.running and not self.queue:
                self.wake.clear()
                await self.wake.wait()
                end = now()
            fresh = 0
            while self.queue and (s.seats is None or len(self.running) < s.seats):
                stream = self.queue.popleft()
                stream.request.admitted = now()
                fresh += stream.request.prompt_tokens
                self.running.append(stream)
            end = max(end, now() - 0.05) + s.step_s
            end += s.step_per_request_s * len(self.running) + s.prefill_token_s * fresh
            await asyncio.sleep(max(0.0, end - now()))
            for stream in self.running:
                stream.token()
            self.running = [st for st in self.running if st.request.outcome == "running"]

    def submit(self, stream: Stream) -> None:
        self.queue.append(stream)
        self.wake.set()

    def pick_fault(self, index: int) -> str | None:
        """The fault of request number ``index``: by position, by period, or by chance."""
        for fault in self.script.faults:
            if index in fault.get("at", []):
                return str(fault["kind"])
            first = fault.get("from", 0)
            if index >= first and "every" in fault and (index - first) % fault["every"] == 0:
                return str(fault["kind"])
            if self.random.random() < fault.get("chance", 0.0):
                return str(fault["kind"])
        return None


class Stream:
    """Writes one answer, chunk by chunk, and its log."""

    def __init__(
        self, engine: Engine, request: Request, connection: Connection, *, chat: bool, usage: str
    ) -> None:
        self.engine, self.request, self.connection = engine, request, connection
        self.chat, self.usage = chat, usage
        self.done = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        kind = "text/html" if self.request.fault == "wrong_content_type" else "text/event-stream"
        extra = "Content-Encoding: gzip\r\n" if self.engine.script.gzip else ""
        self.connection.head(200, kind, chunked=True, extra=extra)
        if self.engine.script.first_chunk == "empty":
            self.event(self.payload("", 0))

    def token(self) -> None:
        r, s = self.request, self.engine.script
        if self.connection.gone:
            return self.end("aborted")
        r.produced += 1
        r.pending += 1
        self.engine.totals["generation"] += 1
        wanted = {"short": max(1, r.wanted // 2), "long": 2 * r.wanted}.get(r.fault or "", r.wanted)
        last = r.produced >= wanted
        if r.fault in ("hang", "slow_loris") and r.produced > 1:
            return None
        broken = r.produced > min(2, r.wanted - 1)
        if broken and r.fault in ("cut", "error_event", "truncated_json", "die"):
            return self.misbehave(r.fault)
        if r.pending >= s.tokens_per_chunk or last:
            self.event(self.payload(" word" * r.pending, r.pending, last))
            r.chunks.append((now(), r.pending))
            r.pending = 0
        return self.finish() if last else None

    def misbehave(self, fault: str) -> None:
        if fault == "die":
            os._exit(1)
        if fault == "error_event":
            self.event({"error": {"message": "engine died", "type": "internal", "code": 500}})
        if fault == "truncated_json":
            self.raw('data: {"id": "x", "choi\n\n')
        if fault != "cut":
            self.connection.write(b"0\r\n\r\n")
            return self.end(fault)
        self.connection.writer.transport.abort()
        return self.end(fault)

    async def trickle(self) -> None:
        """A slow loris: a comment byte now and then, and never a whole event."""
        while not self.connection.gone and not self.done.done():
            self.raw(":")
            await asyncio.sleep(0.05)
        if not self.done.done():
            self.end("aborted")

    def payload(self, text: str, tokens: int, last: bool = False) -> dict[str, Any]:
        r = self.request
        reasoning = self.engine.script.first_chunk == "reasoning" and r.produced <= 3
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        if self.chat:
            key = "reasoning_content" if reasoning else "content"
            choice["delta"] = {"role": "assistant", key: text}
        else:
            choice["text"] = text
        body: dict[str, Any] = {"id": f"r{r.index}", "model": "stub", "choices": [choice]}
        if self.usage == "continuous":
            body["usage"] = self.usage_block()
        return body

    def usage_block(self) -> dict[str, Any]:
        r, told = self.request, self.engine.script.completion_tokens
        return {
            "prompt_tokens": r.prompt_tokens,
            "completion_tokens": r.produced if told is None else told,
            "total_tokens": r.prompt_tokens + r.produced,
        }

    def event(self, body: dict[str, Any]) -> None:
        s = self.engine.script
        text = json.dumps(body)
        if s.split_data:  # a newline between two tokens of the JSON text is still the same JSON
            text = text.replace('"choices": ', '"choices":\ndata: ')
        self.raw((": ping\n\n" if s.comments else "") + f"data: {text}\n\n")

    def raw(self, text: str) -> None:
        data = text.replace("\n", self.engine.script.newline).encode()
        self.connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self) -> None:
        r = self.request
        if self.usage != "none" and r.fault != "no_usage":
            self.event({"id": "u", "choices": [], "usage": self.usage_block()})
        self.raw("data: [DONE]\n\n")
        if not self.engine.script.leaves_open:
            self.connection.write(b"0\r\n\r\n")
        self.end("done")
        totals = self.engine.totals
        first = r.chunks[0][0]
        totals["prompt"] += r.prompt_tokens
        totals["done"] += 1
        totals["queue_s"] += (r.admitted or r.received) - r.received
        totals["e2e_s"] += now() - r.received
        totals["prefill_s"] += first - (r.admitted or first)
        totals["decode_s"] += now() - first

    def end(self, outcome: str) -> None:
        self.request.outcome = outcome
        self.request.finished = now()
        if not self.done.done():
            self.done.set_result(None)


class Connection:
    """A minimal HTTP/1.1 connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Server
    ) -> None:
        self.reader, self.writer, self.server = reader, writer, server

    @property
    def gone(self) -> bool:
        return self.reader.at_eof() or self.writer.transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    def head(
        self, status: int, kind: str, *, length: int = 0, chunked: bool = False, extra: str = ""
    ) -> None:
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
        connection = self.server.script.connection.replace("drop", "keep-alive")
        self.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{framing}\r\n"
            f"Connection: {connection}\r\n{extra}\r\n".encode()
        )

    def reply(self, body: Any, status: int = 200, kind: str = JSON, extra: str = "") -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        if "gzip" in extra:
            data = gzip.compress(data)
        self.head(status, kind, length=len(data), extra=extra)
        self.write(data)

    def refuse(self, status: int, message: str, extra: str = "") -> None:
        self.server.engine.refused += 1
        self.reply({"error": {"message": message, "code": status}}, status, extra=extra)

    async def serve(self) -> None:
        try:
            while not self.gone:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
                line, *lines = head.split("\r\n")
                headers = {k.lower(): v for k, v in (x.split(": ", 1) for x in lines if x)}
                body = await self.reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = line.split(" ")
                await self.server.route(self, method, path, headers, body)
                if self.server.script.connection == "drop":
                    await self.reader.read(1)
                    await asyncio.sleep(0.1)
                if self.server.script.connection != "keep-alive":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.writer.close()


class Server:
    """The routes."""

    def __init__(self) -> None:
        self.set_script(Script())

    def set_script(self, script: Script) -> None:
        self.script = script
        self.engine = Engine(script)
        self.task = asyncio.get_running_loop().create_task(self.engine.run())

    async def route(
        self, c: Connection, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        s = self.script
        data = json.loads(body) if body else {}
        if path == "/stub/script":
            self.task.cancel()
            self.set_script(Script(**data))
            return c.reply({})
        if path == "/stub/log":
            return c.reply([dataclasses.asdict(r) for r in self.engine.log])
        if s.api_key and headers.get("authorization") != f"Bearer {s.api_key}":
            return c.refuse(401, f"wrong key: {headers.get('authorization')}")
        if faults := s.page_faults.get(path):
            status = faults.pop(0)
            return c.refuse(status, "not now", PAGE_HEADERS.get(status, ""))
        match path:
            case "/health":
                return c.reply({}, s.health)
            case "/v1/models":
                model = {"id": "stub-model", "object": "model", "max_model_len": s.max_model_len}
                extra = "Content-Encoding: gzip\r\n" if s.gzip else ""
                return c.reply({"object": "list", "data": [model]}, extra=extra)
            case "/version" if (s.metrics or "").startswith("vllm"):
                return c.reply({"version": "0.99.1"})
            case "/props" if s.metrics == "llamacpp":
                return c.reply({"total_slots": s.seats, "build_info": "b5163-08d0baac"})
            case "/info" if s.metrics == "tgi":
                return c.reply({"version": "2.0.1", "model_id": "stub-model"})
            case "/get_server_info" if s.metrics == "sglang":
                return c.reply({"max_running_requests": s.seats, "version": "0.4.6"})
            case "/metrics" if s.metrics:
                return c.reply(render_metrics(s.metrics, self.engine), kind="text/plain")
            case "/tokenize" if s.tokenize:
                return c.reply(self.tokenize(s.tokenize, data))
            case "/v1/completions" | "/v1/chat/completions":
                return await self.generate(c, data, chat="chat" in path)
        return c.refuse(404, "not found")

    def tokenize(self, dialect: str, data: dict[str, Any]) -> Any:
        text = data[{"vllm": "prompt", "llamacpp": "content", "tgi": "inputs"}[dialect]]
        ids = [hash(w) % 1000 + 300 for w in text.split() for _ in range(tokens_of(w))]
        if dialect == "tgi":
            return [{"id": i, "text": "x"} for i in [1, *ids]]
        return {"tokens": [1, *ids], "count": len(ids) + 1}

    async def generate(self, c: Connection, data: dict[str, Any], *, chat: bool) -> None:
        s, engine = self.script, self.engine
        prompt = data["messages"][0]["content"] if chat else data["prompt"]
        given = {*data, *(data.get("stream_options") or {})}
        wrong = [name for name in s.unknown_fields if name in given]
        if wrong:
            return c.refuse(400, f"unrecognized field {wrong[0]}")
        if isinstance(prompt, list) and (not s.token_ids or max(prompt) >= s.vocabulary):
            return c.refuse(400, "prompt must be a string" if not s.token_ids else "bad token id")
        if isinstance(prompt, list):
            length = len(prompt)
        else:
            length = 1 + sum(tokens_of(w) for w in prompt.split())
        options = data.get("stream_options") or {}
        usage = s.usage if options.get("include_usage") else "none"
        if usage == "continuous" and not options.get("continuous_usage_stats"):
            usage = "final"
        index = len(engine.log)
        request = Request(
            index, length, data["max_tokens"], now(), engine.pick_fault(index), str(prompt)[:80]
        )
        engine.log.append(request)
        if request.fault in ("429", "503", "500"):
            request.outcome = request.fault
            extra = f"Retry-After: {s.retry_after_s}\r\n" if request.fault == "429" else ""
            return c.refuse(int(request.fault), "try later", extra)
        if request.fault == "mute":
            while not c.gone:
                await asyncio.sleep(0.02)
            request.outcome = "aborted"
            return None
        stream = Stream(engine, request, c, chat=chat, usage=usage)
        stream.start()
        engine.submit(stream)
        if request.fault == "slow_loris":
            await stream.trickle()
        else:
            await stream.done
        return None


def tokens_of(word: str) -> int:
    """The stub's tokenizer: long words are two tokens."""
    return 1 if len(word) <= 5 else 2


async def main() -> None:
    """Serve on the loopback port given, or on a free one; a script may follow as JSON.

    With the environment variable STUB_CERTIFICATE, a PEM file with its key, it speaks TLS.
    """
    server = Server()
    tls = None
    if pem := os.environ.get("STUB_CERTIFICATE"):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pem)
    if len(sys.argv) > 2:
        server.task.cancel()
        server.set_script(Script(**json.loads(sys.argv[2])))
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    listener = await asyncio.start_server(
        lambda r, w: Connection(r, w, server).serve(), "127.0.0.1", port, backlog=1024, ssl=tls
    )
    print(listener.sockets[0].getsockname()[1], flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
