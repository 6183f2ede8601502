"""One style for every figure, and saving it as PNG, SVG or interactive HTML without a browser.

Needs the extra ``plot``: ``pip install 'servefit[plot]'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from servefit.errors import ServefitError

#: Okabe and Ito's colours, told apart in every common kind of colour blindness; black comes last.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#F0E442",
    "#000000",
)
#: What only stands beside the subject: reference lines, other laws, allowed bands.
MUTED = "#8A8A8A"
BAND = "#E8E8E8"

#: Size of a plot in points, and the resolution of a PNG.
WIDTH, HEIGHT, PPI = 520, 300, 110
_FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"


def chart_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """An Altair chart of some rows, which travel in it."""
    import altair as alt

    return alt.Chart(alt.Data(values=[dict(row) for row in rows]))  # type: ignore[no-untyped-call]


def styled(chart: Any) -> Any:
    """An Altair chart in the house style: quiet axes, one font, `PALETTE` for categories."""
    return (
        chart.configure(font=_FONT, background="white", padding=10)
        .configure_view(strokeWidth=0, continuousWidth=WIDTH, continuousHeight=HEIGHT)
        .configure_axis(
            gridColor="#EDEDED",
            domainColor="#444444",
            tickColor="#444444",
            labelFontSize=11,
            titleFontSize=12,
            titleFontWeight="normal",
            titlePadding=8,
        )
        .configure_title(
            fontSize=14, anchor="start", subtitleFontSize=11, subtitleColor="#555555", offset=12
        )
        .configure_legend(labelFontSize=11, titleFontSize=11, titleFontWeight="normal")
        .configure_range(category=list(PALETTE))
    )


def save(chart: Any, path: str | Path, *, ppi: int = PPI) -> None:
    """Write the chart in `styled` style; the suffix says how: ``.png``, ``.svg`` or ``.html``.

    Args:
        chart: an Altair chart.
        path: where to.
        ppi: resolution of a PNG.

    Raises:
        ServefitError: another suffix, or the file cannot be written.
    """
    import io

    path = Path(path)
    if path.suffix not in (".png", ".svg", ".html"):
        raise ServefitError(f"{path}: figures are written as .png, .svg or .html")
    chart = styled(chart)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            image = io.BytesIO()
            chart.save(image, format="png", ppi=ppi)
            _save_small(image, path)
        elif path.suffix == ".svg":
            chart.save(str(path))
        else:
            chart.save(str(path), inline=True)
    except OSError as error:
        raise ServefitError(f"{path}: cannot be written ({error.strerror})") from None


def png(chart: Any, *, ppi: int = PPI) -> bytes:
    """The chart in `styled` style as a small PNG."""
    import io

    whole, small = io.BytesIO(), io.BytesIO()
    styled(chart).save(whole, format="png", ppi=ppi)
    _save_small(whole, small)
    return small.getvalue()


def _save_small(image: IO[bytes], to: Path | IO[bytes]) -> None:
    """A tenth of the size: a line chart needs no more than a palette of colours."""
    from PIL import Image

    with Image.open(image) as whole:
        small = whole.convert("RGB").quantize(64, dither=Image.Dither.NONE)
        small.save(to, format="png", optimize=True)
