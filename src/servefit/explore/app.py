"""The web application: a page, its answers, and exports; reads nothing but what it was given."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from asyncio import Semaphore
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, lru_cache, partial
from hashlib import sha256
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any, Self

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from servefit.errors import ServefitError
from servefit.explore.answer import command, document, view_of
from servefit.explore.fields import FieldError, read
from servefit.explore.form import FOLDED
from servefit.explore.guard import LOOPBACK, Guard
from servefit.explore.session import Session
from servefit.explore.specs import specs
from servefit.explore.wording import in_labels

#: What the page is made of, all in one folder: name in the URL -> media type.
STATIC = {
    "app.js": "text/javascript",
    "answer.js": "text/javascript",
    "charts.js": "text/javascript",
    "controls.js": "text/javascript",
    "app.css": "text/css",
}
#: Of what computes, so many run at once; the pool has 40 threads.
VIEWS_AT_ONCE, EXPORTS_AT_ONCE = 4, 2
#: Controls whose defaults are the calibration's own: a URL names them whatever they hold.
ALWAYS = ("model", "gpu", "input_tokens", "output_tokens", "slo_ms")
#: Answers that are remembered; a drag goes back and forth.
REMEMBERED = 512
_log = logging.getLogger(__name__)

Items = tuple[tuple[str, str], ...]
Answer = Callable[[Items], Response]


def application(session: Session, script: Vega, hosts: Sequence[str] = ()) -> ASGIApp:
    """The page of a session.

    Args:
        session: what was given on the command line.
        script: what draws the charts in the browser.
        hosts: names besides loopback that a request may be addressed to.
    """
    fields = session.controls()
    title, causes = session.decomposition()
    fingerprint = sha256(session.calibration.to_json().encode()).hexdigest()[:8]
    files = _static()
    drawing = Lock()  # Altair and the renderer keep state of their own.
    describing = Lock()
    computing = Lock()  # The same view asked for many times at once is worked out once.

    # Threads are few: however many views and exports wait, some are left for the rest of the page.
    views, exports = Semaphore(VIEWS_AT_ONCE), Semaphore(EXPORTS_AT_ONCE)

    @cache
    def described(theme: str) -> bytes:
        return json.dumps(specs(title, causes, theme)).encode()

    @lru_cache(maxsize=REMEMBERED)
    def view(items: Items) -> bytes:
        return json.dumps(document(session, read(fields, items)), allow_nan=False).encode()

    def answered(items: Items) -> Response:
        with computing:
            return Response(view(items), media_type="application/json")

    def page_of_report(items: Items) -> Response:
        from servefit.report.page import html

        values = read(fields, items)
        seen = view_of(session, values)
        with drawing:
            text = html(seen, session.source, command(session, values))
            return _file(text, "text/html", "report.html")

    def advice(items: Items) -> Response:
        found = json.loads(view(items))["advice"]
        return _file(json.dumps(found, indent=2), "application/json", "advice.json")

    def picture(items: Items) -> Response:
        from servefit.figures import png
        from servefit.report.figures import main_figure
        from servefit.report.series import series

        seen = view_of(session, read(fields, items))
        data = series(seen, None if session.source is None else session.source.observations)
        with drawing:
            return _file(png(main_figure(seen, data)), "image/png", "advice.png")

    async def index(request: Request) -> Response:
        return Response(files["index.html"], media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404)
        return Response(files[name], media_type=STATIC[name])

    def vega(items: Items) -> Response:
        return Response(script.read(), media_type="text/javascript")

    async def options(request: Request) -> Response:
        return JSONResponse(
            {
                "fields": [asdict(field) for field in fields],
                "folded": FOLDED,
                "title": Path(session.name).name,
                "law": session.calibration.law,
                "calibration": fingerprint,
                "always": ALWAYS,
                "has_runs": session.source is not None,
            }
        )

    async def charts(request: Request) -> Response:
        theme = request.query_params.get("theme", "light")
        if theme not in ("light", "dark"):
            raise HTTPException(422)

        def drawn() -> Response:
            with describing:
                return Response(described(theme), media_type="application/json")

        return await run_in_threadpool(drawn)

    computed = partial(_computed, partial(in_labels, fields))
    routes = [
        Route("/", index),
        Route("/static/{name}", static),
        Route("/vega.js", computed(vega, Semaphore(EXPORTS_AT_ONCE))),
        Route("/api/options", options),
        Route("/api/charts", charts),
        Route("/api/view", computed(answered, views)),
        Route("/export/report.html", computed(page_of_report, exports)),
        Route("/export/advice.json", computed(advice, exports)),
        Route("/export/advice.png", computed(picture, exports)),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
    return Guard(app, LOOPBACK | {host.lower() for host in hosts})


def _computed(
    worded: Callable[[str], str], answer: Answer, turns: Semaphore
) -> Callable[[Request], Any]:
    """An endpoint that computes in a thread in its turn; what goes wrong is one clear line."""

    async def endpoint(request: Request) -> Response:
        items = tuple(request.query_params.multi_items())
        try:
            async with turns:
                return await run_in_threadpool(answer, items)
        except FieldError as error:
            return JSONResponse(
                {"errors": {name: worded(text) for name, text in error.errors.items()}},
                status_code=422,
            )
        except ServefitError as error:
            return JSONResponse({"errors": {"": str(error)}}, status_code=422)
        except Exception as error:
            _log.error("%s: %s", type(error).__name__, error)
            message = f"servefit could not work this out ({type(error).__name__})"
            return JSONResponse({"errors": {"": message}}, status_code=500)

    return endpoint


def _refused(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    messages = {404: "there is no such page", 405: "only GET is answered"}
    text = messages.get(status, "the request makes no sense")
    return JSONResponse({"errors": {"": text}}, status_code=status)


def _file(content: str | bytes, media_type: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)


def _static() -> dict[str, bytes]:
    folder = resources.files("servefit.explore").joinpath("static")
    return {name: folder.joinpath(name).read_bytes() for name in ("index.html", *STATIC)}


class Vega:
    """Vega, Vega-Lite and Vega-Embed as one script, out of vl-convert.

    Putting it together takes seconds and holds the interpreter's lock: another process does it.
    """

    _CODE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """A script that a process writes to its standard output, see `start`."""
        self._process = process
        self._reading = Lock()
        self._script = b""

    @classmethod
    def start(cls) -> Self:
        """Begin; `read` waits for the end."""
        utf8 = os.environ | {"PYTHONUTF8": "1"}
        command = [sys.executable, "-c", cls._CODE]
        # In a session of its own: Ctrl-C is for the server, which then closes it.
        return cls(
            subprocess.Popen(command, stdout=subprocess.PIPE, env=utf8, start_new_session=True)
        )

    def read(self) -> bytes:
        """The script; raises `ServefitError` if there is none."""
        with self._reading:
            if not self._script:
                self._script, _ = self._process.communicate()
            if self._process.returncode:
                raise ServefitError("vl-convert could not put Vega together: install it anew")
            return self._script

    def close(self) -> None:
        """Stop putting it together, if that still goes on."""
        self._process.kill()
        self._process.wait()
