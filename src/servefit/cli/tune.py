"""``servefit tune``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.profile_options import (
    auto_options,
    chooser_of,
    items,
    one_setting,
    options_of,
    server_and_run_options,
    target_of,
)
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.profiling.tune import TuneChooser, Verification


@click.command(name="tune")
@click.argument("url", required=False)
@click.option("--input-tokens", type=click.IntRange(1), required=True, help="Prompt length.")
@click.option("--output-tokens", type=click.IntRange(2), required=True, help="Answer length.")
@click.option(
    "--slo",
    "slo_texts",
    multiple=True,
    required=True,
    metavar="LATENCY=LIMIT",
    help="Limit on a mean latency, as for `servefit advise`: tpot=40ms, e2e=1.5x@32. Repeatable.",
)
@click.option(
    "--rule",
    type=click.Choice(["efficiency", "tolerance"]),
    default="efficiency",
    show_default=True,
    help="See `servefit advise`.",
)
@click.option(
    "--epsilon", type=click.FloatRange(0, 1), default=0.1, show_default=True, help="Of the rule."
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.9,
    show_default=True,
    help="Of the SLO.",
)
@click.option(
    "--request-rate",
    type=click.FloatRange(0, min_open=True),
    metavar="R",
    help="Requests per second to serve.",
)
@click.option(
    "--points",
    type=click.IntRange(2),
    default=6,
    show_default=True,
    help="Measure no more points than this before advising.",
)
@click.option("--batch", metavar="N,...", help="Loads to choose from; default: powers of two.")
@click.option("--set", "sets", multiple=True, metavar="NAME=V", help="Values for --launch.")
@auto_options
@common.json_option
@server_and_run_options
def command(
    url: str | None,
    input_tokens: int,
    output_tokens: int,
    slo_texts: tuple[str, ...],
    rule: Any,
    epsilon: float,
    confidence: float,
    request_rate: float | None,
    points: int,
    batch: str | None,
    sets: tuple[str, ...],
    as_json: bool,
    output: str,
    **shared: Any,
) -> None:
    """Find the batch cap for the server at URL under an SLO: profile, fit, advise, verify.

    Points are chosen by what they teach per second; the law is fitted to them, and the cap that it
    advises is measured before it is printed: SLOs must hold for latencies as clients see them. All
    rows stay in the campaign file, and the same command again continues with it. The exit status
    is 0 only if the cap was measured and keeps every SLO, 1 if not or if --max-time was up.

    \b
    Example:
      servefit tune http://localhost:8000 --input-tokens 512 --output-tokens 128 \\
          --slo tpot=40ms --gpu H100
    """
    from servefit.advise import Infeasible, parse_slos
    from servefit.cli.profile_display import ConsoleDisplay
    from servefit.cli.profile_run import require_extra, run_loop, say_if_late

    require_extra()
    from servefit.profiling.campaign import Campaign
    from servefit.profiling.journal import Journal
    from servefit.profiling.tune import MOST_VERIFICATIONS, Question, TuneChooser

    target, options, setting = target_of(url, shared), options_of(shared), one_setting(sets)
    display = ConsoleDisplay(common.console(stderr=True), points + MOST_VERIFICATIONS)
    lengths = [str(input_tokens)], [str(output_tokens)], items(batch)
    chooser = TuneChooser(
        chooser_of(shared, points, lengths, target, setting, display.say),
        Question(
            input_tokens,
            output_tokens,
            parse_slos(slo_texts),
            rule=rule,
            epsilon=epsilon,
            confidence=confidence,
            rate_per_s=request_rate,
        ),
        say=display.say,
    )
    with Journal(output) as journal, display.live():
        campaign = Campaign(target, journal, options, display)
        run_loop(campaign.run_adaptively(chooser, setting))
    late = say_if_late(campaign, then=", and what follows it")
    answer = chooser.answer
    if answer is None and late:
        sys.exit(1)
    if answer is None:
        raise ServefitError(
            f"nothing could be advised: no point was measured in full, see {output} for the reasons"
        )
    if as_json:
        common.echo_json(_as_json(chooser))
    if isinstance(answer, Infeasible):
        kept = chooser.largest_kept()
        measured = "" if kept is None else f"; as measured, {kept} in flight kept every SLO"
        raise ServefitError(answer.message + measured)
    if not as_json:
        _print(chooser)
    if late or not chooser.verified:
        sys.exit(1)


def _as_json(chooser: TuneChooser) -> dict[str, Any]:
    from servefit.advise import Infeasible
    from servefit.advise.document import advice_as_json

    answer = chooser.answer
    assert answer is not None
    if isinstance(answer, Infeasible):
        advice = {"feasible": False, **asdict(answer)}
    else:
        advice = advice_as_json(answer, _warnings(chooser))
    return {
        "advice": advice,
        "calibration": chooser.calibration,
        "verified": chooser.verified,
        "verifications": chooser.verifications,
        "largest_load_within_slos_as_measured": chooser.largest_kept(),
        "stopped_because": chooser.auto.stopped_because,
    }


def _print(chooser: TuneChooser) -> None:
    from servefit.advise import Advice
    from servefit.cli.advise_text import print_advice

    assert isinstance(chooser.answer, Advice)
    print_advice(chooser.answer, _warnings(chooser))
    for verification in chooser.verifications:
        _print_verification(verification)
    if not chooser.verified:
        cap, kept = chooser.answer.decision.chosen.batch_cap, chooser.largest_kept()
        text = f"NOT VERIFIED: no measurement at a cap of {cap} keeps every SLO"
        measured = "" if kept is None else f"; {kept} in flight does, as measured"
        click.echo(f"\n{text}{measured}.")


def _print_verification(verification: Verification) -> None:
    rows = [
        _compared(
            "tokens/s", verification.predicted_tokens_per_s, verification.measured_tokens_per_s
        ),
        *(
            _compared(f"{name.upper()} (s)", predicted, verification.measured_s[name])
            for name, predicted in verification.predicted_s.items()
        ),
    ]
    click.echo(f"\nVerified with {verification.batch_cap} requests in flight:")
    common.print_table(["", "predicted", "measured", "off by"], rows, left=[""])
    if verification.broken:
        click.echo(f"BROKEN at this cap as measured: {', '.join(verification.broken)}")
    else:
        click.echo("Every SLO holds at this cap as measured.")


def _compared(label: str, predicted: float, measured: float | None) -> list[str]:
    if measured is None:
        return [label, f"{predicted:,.4g}", "?", ""]
    return [label, f"{predicted:,.4g}", f"{measured:,.4g}", f"{predicted / measured - 1:+.1%}"]


def _warnings(chooser: TuneChooser) -> Sequence[str]:
    from servefit.advise import Advice

    assert isinstance(chooser.answer, Advice)
    return chooser.answer.notes
