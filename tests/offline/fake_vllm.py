"""A stand-in for ``vllm.LLMEngine``: the same calls, scheduled with a token budget, no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class FakeRequest:
    name: str
    prompt: list[int]
    output_tokens: int
    computed: int = 0
    sent: int = 0
    seated: bool = False


@dataclass
class FakeScheduler:
    """First come, first served; running requests before waiting ones, as in vLLM."""

    budget: int
    seats: int
    requests: list[FakeRequest] = field(default_factory=list)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        tokens: dict[str, int] = {}
        new, cached, left = [], [], self.budget
        for r in sorted(self.requests, key=lambda r: not r.seated):
            seated = sum(r.seated for r in self.requests)
            if not left or (not r.seated and seated >= self.seats):
                break
            tokens[r.name] = min(left, max(1, len(r.prompt) - r.computed))
            left -= tokens[r.name]
            (cached if r.seated else new).append(r)
            r.seated = True
        return SimpleNamespace(
            num_scheduled_tokens=tokens,
            scheduled_new_reqs=[
                SimpleNamespace(req_id=r.name, num_computed_tokens=r.computed) for r in new
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[r.name for r in cached],
                num_computed_tokens=[r.computed for r in cached],
                resumed_req_ids=set(),
            ),
        )


class FakeLLM:
    """Each step is scheduled, takes ``pause(tokens)``, and yields a token a finished prompt."""

    def __init__(
        self,
        budget: int = 10**6,
        seats: int = 10**6,
        pause: Callable[[int], None] = lambda tokens: None,
        lose: int = 0,
    ) -> None:
        self.scheduler = FakeScheduler(budget, seats)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=self.scheduler))
        self.pause, self.lose = pause, lose
        self.prompts: list[list[int]] = []
        self.aborted: list[str] = []

    def add_request(self, name: str, prompt: dict[str, list[int]], sampling: int) -> str:
        ids = prompt["prompt_token_ids"]
        self.prompts.append(ids)
        self.scheduler.requests.append(FakeRequest(name, ids, sampling - self.lose))
        return name

    def has_unfinished_requests(self) -> bool:
        return bool(self.scheduler.requests)

    def abort_request(self, names: list[str], internal: bool) -> None:
        assert internal
        self.aborted += names
        self.scheduler.requests = [r for r in self.scheduler.requests if r.name not in names]

    def step(self) -> list[Any]:
        scheduled = self.scheduler.schedule().num_scheduled_tokens
        self.pause(sum(scheduled.values()))
        outputs = []
        for r in list(self.scheduler.requests):
            r.computed += scheduled.get(r.name, 0)
            if r.name in scheduled and r.computed >= len(r.prompt):
                r.sent += 1
                token = SimpleNamespace(token_ids=[0])
                outputs.append(SimpleNamespace(request_id=r.name, outputs=[token]))
                if r.sent == r.output_tokens:
                    self.scheduler.requests.remove(r)
        return outputs
