"""CTranslate2 as a static-batch decoder on the CPU."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from servefit.errors import ServefitError
from servefit.hardware.measure import UNDISTURBED_SHARE, time_and_wait_s
from servefit.local.decoder import NUM_SPECIAL_TOKENS, require_ctranslate2, write_decoder
from servefit.models.config import read_config_file

#: The engine's thread rests between batches within microseconds, later where others take its core.
MOST_SECONDS_TO_REST = 2.0


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """One static batch, by the wall clock.

    Attributes:
        e2e_s: from handing the prompts over to the last token out of the engine.
        ttft_s: from the same start to the first token out of the engine. All requests of a static
            batch are prefilled together, so it is the TTFT of each of them.
        waited_s: of ``e2e_s``, what the engine's leading thread waited for a core that something
            else ran on; 0 where the operating system does not tell.
        ttft_waited_s: the same of ``ttft_s``.
    """

    e2e_s: float
    ttft_s: float
    waited_s: float = 0.0
    ttft_waited_s: float = 0.0

    @property
    def waited_share(self) -> float:
        """Of E2E."""
        return self.waited_s / self.e2e_s

    @property
    def undisturbed(self) -> bool:
        """Whether the engine had its core to itself."""
        return self.waited_share <= UNDISTURBED_SHARE

    def without_waits(self) -> BatchTiming:
        """The time that a single-threaded engine was at work."""
        return BatchTiming(self.e2e_s - self.waited_s, self.ttft_s - self.ttft_waited_s)


class _TokenClock:
    """Times the first and the last token of a batch, in the thread that computes them."""

    def __init__(self, thread_id: int, *, num_tokens: int) -> None:
        self._thread_id = thread_id
        self._left = num_tokens
        self._marks: list[tuple[float, float]] = []

    def start(self) -> None:
        """Set the clock going, at a moment when the thread sleeps: no wait of before counts."""
        deadline_s = time.perf_counter() + MOST_SECONDS_TO_REST
        while True:
            now_s, waited_s = time_and_wait_s(self._thread_id)
            at_rest = _sleeps(self._thread_id) and time_and_wait_s(self._thread_id)[1] == waited_s
            if at_rest or now_s > deadline_s:
                break
            time.sleep(1e-4)
        self._marks.append((now_s, waited_s))

    def on_token(self, _: object) -> bool:
        """Called for every token of every request; ``False`` lets the engine go on."""
        self._left -= 1
        if len(self._marks) == 1 or self._left == 0:
            self._marks.append(time_and_wait_s(self._thread_id))
        return False

    def timing(self) -> BatchTiming:
        """What was timed."""
        (start_s, start_waited_s), (first_s, first_waited_s), *_ = self._marks
        last_s, last_waited_s = self._marks[-1]
        return BatchTiming(
            e2e_s=last_s - start_s,
            ttft_s=first_s - start_s,
            waited_s=last_waited_s - start_waited_s,
            ttft_waited_s=first_waited_s - start_waited_s,
        )


def _sleeps(thread_id: int) -> bool:
    """Whether a thread of this process has nothing to do; true where nobody tells."""
    try:
        text = Path(f"/proc/self/task/{thread_id}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return text.rpartition(") ")[2].startswith("S")


class LocalEngine:
    """A decoder in memory, ready to run batches; made and closed by `local_engine`.

    Attributes:
        config: the model's ``config.json``.
        threads: cores that it computes on.
        thread_id: of the one that leads them, as the operating system numbers it.
        version: of ctranslate2.
    """

    def __init__(
        self,
        generator: Any,
        config: Mapping[str, Any],
        *,
        threads: int,
        thread_id: int,
        version: str,
    ) -> None:
        """Wrap a loaded ctranslate2 generator."""
        self._generator = generator
        self.config = config
        self.threads = threads
        self.thread_id = thread_id
        self.version = version

    def close(self) -> None:
        """Free the model and end its worker thread, here and now.

        CTranslate2 aborts the process if the thread outlives the interpreter, or if it is the
        thread itself that drops the last reference: no callback may hold the generator.
        """
        self._generator = None

    def run(
        self, *, batch: int, input_tokens: int, output_tokens: int, seed: int = 0
    ) -> BatchTiming:
        """Decode one static batch of random prompts and time it.

        All ``batch`` requests start and end together, each with exactly ``input_tokens`` of prompt
        and ``output_tokens`` of answer: the end token is suppressed up to the last step.

        Raises:
            ServefitError: a size below 1, a context longer than the model's positions, or an
                answer whose length is not the one asked for.
        """
        self._check(batch=batch, input_tokens=input_tokens, output_tokens=output_tokens)
        prompts = self._prompts(batch, input_tokens, seed)
        clock = _TokenClock(self.thread_id, num_tokens=batch * output_tokens)
        clock.start()
        results = self._generator.generate_batch(
            prompts,
            max_batch_size=batch,
            batch_type="examples",
            beam_size=1,
            sampling_topk=1,
            min_length=output_tokens,
            max_length=output_tokens,
            include_prompt_in_result=False,
            callback=clock.on_token,
        )
        lengths = {len(result.sequences_ids[0]) for result in results}
        if len(results) != batch or lengths != {output_tokens}:
            raise ServefitError(
                f"ctranslate2 answered {len(results)} of {batch} requests with {sorted(lengths)} "
                f"tokens where {output_tokens} were asked for: this timing means nothing"
            )
        return clock.timing()

    def _check(self, **sizes: int) -> None:
        for name, value in sizes.items():
            if value < 1:
                raise ServefitError(f"{name} = {value}: must be at least 1")
        context = sizes["input_tokens"] + sizes["output_tokens"]
        positions = self.config.get("max_position_embeddings")
        if positions is not None and context > positions:
            raise ServefitError(
                f"input_tokens + output_tokens = {context}: the model has "
                f"max_position_embeddings = {positions}"
            )

    def _prompts(self, batch: int, input_tokens: int, seed: int) -> list[list[str]]:
        ids = np.random.default_rng(seed).integers(
            NUM_SPECIAL_TOKENS, self.config["vocab_size"], (batch, input_tokens)
        )
        return [[str(token) for token in row] for row in ids]


@contextmanager
def local_engine(config_path: Path, *, threads: int) -> Iterator[LocalEngine]:
    """Build the model of a HuggingFace ``config.json`` with random weights and load it.

    Args:
        config_path: the file.
        threads: cores to compute on, in one worker: batches never run side by side.

    Raises:
        ServefitError: ctranslate2 is not installed, the config cannot be read, or its shape is one
            that cannot be built.
    """
    ctranslate2 = require_ctranslate2()
    config = read_config_file(config_path)
    with tempfile.TemporaryDirectory(prefix="servefit-") as folder:
        write_decoder(config, Path(folder))
        generator = ctranslate2.Generator(
            folder, device="cpu", compute_type="float32", inter_threads=1, intra_threads=threads
        )
    if generator.compute_type != "float32":
        raise ServefitError(
            f"ctranslate2 computes in {generator.compute_type} on this machine: float32 is "
            "needed for the dtype in the runs to be true"
        )
    engine = LocalEngine(
        generator,
        config,
        threads=threads,
        thread_id=_leading_thread(generator),
        version=ctranslate2.__version__,
    )
    del generator  # the engine holds the only reference, see `close`
    try:
        yield engine
    finally:
        engine.close()


def _leading_thread(generator: Any) -> int:
    """Ask the thread that calls back for its number, with a prompt of one token."""
    found: list[int] = []

    def on_token(_: object) -> bool:
        found.append(threading.get_native_id())
        return True

    prompt = [[str(NUM_SPECIAL_TOKENS)]]
    generator.generate_batch(prompt, max_length=1, callback=on_token)
    return found[0]
