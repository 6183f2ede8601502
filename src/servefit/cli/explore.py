"""``servefit explore``."""

from __future__ import annotations

import os
import socket
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import click

from servefit.cli import common
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.workload import Workload


@click.command(name="explore")
@click.argument("calibration", type=click.Path())
@click.option(
    "--runs",
    multiple=True,
    type=click.Path(),
    metavar="RUNS",
    help="Measured runs to draw. Repeatable.",
)
@common.where_option
@click.option(
    "--workload",
    "traces",
    multiple=True,
    type=click.Path(),
    metavar="TRACE",
    help="CSV trace with input_tokens and output_tokens, to choose on the page. Repeatable.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PATH",
    help="Further model to choose on the page: path of a config.json or its folder. Repeatable.",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="GPU",
    help="Further GPU to choose: mine.toml, mine.toml:NAME, or name=..,flops=.., as `servefit "
    "hardware` shows. Repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Further name that the page may be asked for by, such as this machine's; any port. "
    "Repeatable.",
)
def command(
    calibration: str,
    runs: tuple[str, ...],
    where: tuple[str, ...],
    traces: tuple[str, ...],
    models: tuple[str, ...],
    gpus: tuple[str, ...],
    host: str,
    port: int,
    allow_host: tuple[str, ...],
) -> None:
    """Open a local page on which the advice follows what you drag.

    It shows what `servefit advise` says for any model, GPU, lengths, SLO and rule, with the curves
    behind it, one configuration or two side by side. The view is in the URL, so a colleague who
    runs the same command sees the same; it exports as report, JSON and PNG. Only this machine can
    reach the page unless --host says otherwise; it has no password.

    \b
    servefit explore fit.json --runs runs.csv
    servefit explore prior:step --workload trace.csv --port 9000
    servefit explore prior:step --model ./my-model --gpu mine.toml:MyGPU
    """
    from servefit.cli.view import require

    require("explore", "altair", "jinja2", "vl_convert", "starlette", "uvicorn")
    import uvicorn

    from servefit import api
    from servefit.explore.app import Vega, application
    from servefit.explore.guard import addresses, is_everywhere, names_given
    from servefit.explore.session import Session
    from servefit.hardware import get_hardware
    from servefit.models import get_model
    from servefit.report.source import source_of

    if where and not runs:
        raise ServefitError("--where selects rows of --runs: give these too")
    fit = api.as_calibration(calibration)
    session = Session(
        fit,
        name=calibration,
        source=source_of(common.load_rows(runs, where), fit.reading) if runs else None,
        workloads=_workloads(traces),
        models={text: get_model(text) for text in models},
        gpus={text: get_hardware(text) for text in gpus},
    )
    names = names_given(allow_host)
    with _listening(host, port) as listener, closing(Vega.start()) as script:
        bound, at = listener.getsockname()[:2]
        first, *others = addresses(host, bound, at, names)
        click.echo(f"{first} (stop with Ctrl-C)", err=True)
        for address in others:
            click.echo(address, err=True)
        names += [] if is_everywhere(bound) else [host, bound]
        app = application(session, script, names)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False))
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections; raises `ServefitError` where there can be none."""
    if not host.strip():
        raise ServefitError("--host is empty: give an address, such as 127.0.0.1 or 0.0.0.0")
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except UnicodeError:
        raise ServefitError(
            f"{host} is no name of a host: give an address, such as 127.0.0.1 or 0.0.0.0"
        ) from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ServefitError(
            f"{host}, port {port}: cannot listen there ({why}): give another --port or --host"
        ) from None


def _workloads(traces: tuple[str, ...]) -> dict[str, Workload]:
    """Traces by their paths as given, which are pasted again."""
    from servefit.workload import parse_workload

    return {path: parse_workload(path) for path in traces}
