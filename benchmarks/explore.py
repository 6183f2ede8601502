"""How long the what-if page waits for an answer while a slider is dragged. Never a pass/fail test.

A real server on loopback, the client of one browser: distinct questions one after the other, so
that no answer is remembered from another. The aim is below 100 ms.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlencode
from urllib.request import urlopen

STEPS = 60
ASKED = {"model": "facebook/opt-1.3b", "gpu": "H100", "input_tokens": 250, "output_tokens": 390}
#: What is dragged -> the query at each step.
DRAGS: dict[str, Callable[[int], dict[str, object]]] = {
    "SLO": lambda i: {"slo_ms": f"{6 + i / 10:.1f}"},
    "input length": lambda i: {"input_tokens": 200 + 10 * i, "slo_ms": 9},
    "input length, lengths that vary": lambda i: {"input_tokens": 200 + 10 * i, "cv_output": 1},
    "KV capacity, 100,000 caps fit": lambda i: {"kv_capacity_tokens": 64_000_000 + 1000 * i},
}


def main() -> None:
    command = [sys.executable, "-m", "servefit", "explore", "prior:step", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            origin = server.stderr.readline().partition("/ (stop")[0]
            urlopen(f"{origin}/vega.js").read()
            for name, query in DRAGS.items():
                times_ms = list(answers_ms(origin, query))
                slowest = statistics.quantiles(times_ms, n=20)[-1]
                print(
                    f"explore: dragging {name}: {statistics.median(times_ms):.0f} ms an update "
                    f"(median of {STEPS}, 95 % below {slowest:.0f} ms)"
                )
        finally:
            server.terminate()


def answers_ms(origin: str, query: Callable[[int], dict[str, object]]) -> Iterable[float]:
    """Milliseconds of each answer, after one that warms up."""
    for step in range(-1, STEPS):
        url = f"{origin}/api/view?{urlencode(ASKED | query(step))}"
        start = time.perf_counter()
        with urlopen(url) as answer:
            answer.read()
        if step >= 0:
            yield 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
