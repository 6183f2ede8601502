"""The command line: thin, one file a command, heavy imports only inside the command that runs."""

from __future__ import annotations

import importlib
import keyword
import os
import sys

import click

import servefit
from servefit.errors import ServefitError

#: Command -> one line of help. Each lives in ``servefit.cli.NAME`` as ``command``; the modules are
#: imported only when needed, so that ``servefit --help`` answers at once.
COMMANDS: dict[str, str] = {
    "fit": "Fit a law to measured runs and write a calibration.",
    "predict": "Predict throughput, latency and their causes at any point.",
    "advise": "Recommend the batch cap to run under an SLO.",
    "report": "Write one HTML page about the recommendation and the fit.",
    "explore": "Drag what you deploy in the browser and see the advice follow.",
    "evaluate": "Score laws on runs that they have not seen.",
    "study": "Run the paper's evaluation, or your own, on tables of runs.",
    "import": "Turn result files of benchmark tools into a table of runs.",
    "check": "Validate a table of runs, row by row.",
    "profile": "Measure a live server over HTTP and write a table of runs.",
    "tune": "Profile, fit, advise and verify a live server, in one line.",
    "demo": "Measure, fit, advise and verify on a real engine on this CPU.",
    "roofline": "Show where time, bandwidth and compute go, by formula.",
    "characterise": "The same from profilers, beside the formula and a calibration.",
    "hardware": "List accelerators, or measure this machine's CPU.",
    "models": "List models, or show one's shape from its config.json.",
}


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the workflow."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        module = importlib.import_module(f"servefit.cli.{name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(servefit.__version__, prog_name="servefit")
def cli() -> None:
    """Know how an LLM server performs at any batch size, and the batch cap to run.

    The path most people take: measured runs -> fit -> predict -> advise. Try it on this machine
    with `servefit demo`.
    """


def main() -> None:
    """Run the command line; user errors are one line on stderr and exit status 2."""
    try:
        cli(standalone_mode=False)
    except ServefitError as error:
        click.echo(f"servefit: {error}", err=True)
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("servefit: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (``| head``) has gone: nothing more to say, and no traceback at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
