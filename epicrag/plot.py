"""Draws a bench: how far the answers are from full prefill, against what was paid for. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epicrag.errors import UsageError

if TYPE_CHECKING:
    from epicrag.bench import Report, Row

INCHES = (7.2, 4.8)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Of Okabe and Ito: told apart by everyone. Markers tell the same, for print."""
MARKERS = "osD^vP"
_FAR = 10
"""From this ratio of largest to smallest on, an axis is better read in powers of ten."""
_SIDES = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))
_PLACES = [(x * far, y * far) for far in (1.0, 2.0, 3.5) for x, y in _SIDES]
"""Where a name may stand from its point, the best first."""


def check() -> None:
    """UsageError where matplotlib is missing: said before anything is measured."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            "a plot needs matplotlib, which is not installed",
            "install the extra: pip install 'epicrag[bench]', or leave out --plot",
        )


def draw(report: Report, path: Path) -> None:
    """Write a picture of the policies that reuse chunks; the file's ending says of which kind.

    Full prefill and prefix caching are named below it: they pay for nearly everything and are exact.
    """
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row.compile and row.kl is not None]
    if not rows:
        raise UsageError("there is nothing to plot: no policy that reuses chunks was measured")
    figure = Figure(figsize=INCHES, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _points(axes, rows)
    _scales(axes, rows)
    _words(figure, axes, report, len(rows))
    figure.draw_without_rendering()  # where things stand is known only then
    _labels(axes, rows)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"the plot cannot be written to {path}: {error}") from error


def _at(row: Row) -> tuple[float, float]:
    """Percent charged, and KL."""
    assert row.kl is not None
    return 100 * row.charged_share, row.kl


def _points(axes: Any, rows: Sequence[Row]) -> None:
    modes = list(dict.fromkeys(row.compile for row in rows))
    for number, mode in enumerate(modes):
        places = [_at(row) for row in rows if row.compile == mode]
        axes.scatter(
            *zip(*places, strict=True),
            s=46,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            label=f"compiled {mode}",
            zorder=3,
        )
    front = frontier([_at(row) for row in rows])
    axes.plot(*zip(*front, strict=True), color="#bbbbbb", linewidth=1, zorder=1)
    axes.legend(frameon=False, fontsize=8, loc="best")


def frontier(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both, by what they cost."""
    front: list[tuple[float, float]] = []
    for place in sorted(places):
        if not front or place[1] < front[-1][1]:
            front.append(place)
    return front


def _scales(axes: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    charged, kl = zip(*map(_at, rows), strict=True)
    if min(kl) > 0 and max(kl) / min(kl) >= _FAR:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.18, y=0.18)
    paid = [share for share in charged if share > 0]
    if paid and max(paid) / min(paid) >= _FAR:
        axes.set_xscale("symlog", linthresh=min(paid))  # nothing charged has a place on it, too
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if value >= 0 else ""))
    axes.grid(True, color="#eeeeee", zorder=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _words(figure: Any, axes: Any, report: Report, drawn: int) -> None:
    setup = report.setup
    axes.set_xlabel("charged: context tokens computed again, %")
    axes.set_ylabel("KL to full prefill per answer token, nats (lower is better)")
    title = f"{setup['model']}, {setup['dtype']} on {setup['device']}"
    points = max(row.points for row in report.rows)
    about = f"{points} shuffled prompts of {report.prompt_tokens:,} tokens"
    axes.set_title(f"{title}: {about}", fontsize=9, loc="left")
    others = [row for row in report.rows if not row.compile]
    names = ", ".join(f"{row.policy}: {row.charged_share:.0%} charged" for row in others)
    if names:
        figure.supxlabel(f"not drawn, exact: {names}", fontsize=7, color="#666666")


def _labels(axes: Any, rows: Sequence[Row]) -> None:
    """Write each name beside its point, where it covers no point and no other name."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.5, foreground="white")]  # legible where a line runs below
    renderer = axes.figure.canvas.get_renderer()
    taken = [_box(axes.transData.transform(_at(row)), 6) for row in rows]
    legend = axes.get_legend().get_window_extent(renderer)
    taken.append(legend)
    for row in sorted(rows, key=_at):
        best = None
        for right, up in _PLACES:
            label = axes.annotate(
                row.policy,
                _at(row),
                xytext=(8 * right, 8 * up),
                textcoords="offset points",
                fontsize=8,
                path_effects=halo,
                ha="left" if right > 0 else "right" if right < 0 else "center",
                va="bottom" if up > 0 else "top" if up < 0 else "center",
            )
            box = label.get_window_extent(renderer)
            cost = sum(_overlap(box, other) for other in taken) + 5 * _outside(box, axes.bbox)
            if best is None or cost < best[0] - 1:
                if best:
                    best[1].remove()
                best = (cost, label, box)
            else:
                label.remove()
            if cost == 0:
                break
        assert best is not None
        taken.append(best[2])


def _box(centre: Sequence[float], radius: float) -> Any:
    from matplotlib.transforms import Bbox

    x, y = centre
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)


def _overlap(one: Any, other: Any) -> float:
    """Area that two boxes share."""
    wide = float(min(one.x1, other.x1) - max(one.x0, other.x0))
    high = float(min(one.y1, other.y1) - max(one.y0, other.y0))
    return max(0.0, wide) * max(0.0, high)


def _outside(box: Any, frame: Any) -> float:
    return float(box.width * box.height) - _overlap(box, frame)
