"""How far an ingest is: a bar where a person looks at a terminal, else a line now and then."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol, Self

from epicrag.cli.output import Output, clean, count, duration, shown
from epicrag.types import FileReport

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from epicrag.pipeline import Event

LINE_SECONDS = 5.0
_NAMES = {
    "file": "files",
    "embed": "passages of this file",
    "reembed": "passages",
    "kv": "KV tokens",
    "archive": "files of the archive",
    "bench": "measurements",
    "eval": "questions",
}


class Reporter(Protocol):
    """Takes the events of a run; a context manager."""

    def __call__(self, event: Event) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


def reporter(out: Output) -> Reporter:
    """Return bars for a terminal, lines for everything else."""
    return Bars(out) if out.is_live else Lines(out)


def file_line(report: FileReport) -> str:
    """One file of the report, on one line."""
    chunks = f" ({count(report.chunks, 'chunk')})" if report.chunks else ""
    reason = f": {report.reason}" if report.reason else ""
    return f"{report.status:<11} {shown(report.path)}{chunks}{reason}".replace("\n", "\\n")


def _advised(report: FileReport, out: Output) -> FileReport:
    return replace(report, reason=out.advice(report.reason)) if report.reason else report


def _is_said(report: FileReport, out: Output) -> bool:
    """A file that is as it was is worth a line only to those who ask for more."""
    return report.status != "unchanged" or out.verbose


class Lines:
    """A line for each file that is done, and one every few seconds for what takes long."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __call__(self, event: Event) -> None:
        if event.stage == "note":
            self._out.note(f"note: {self._out.advice(event.message)}")
        elif event.stage == "doing":
            self._out.note(f"{event.message} …")
        elif event.report is not None:
            if self._out.jsonl:
                self._out.object(asdict(event.report))
            if _is_said(event.report, self._out):
                self._out.note(file_line(_advised(event.report, self._out)))
        elif time.monotonic() - self._said >= LINE_SECONDS or event.done == event.total:
            self._said = time.monotonic()
            doing = f"; {event.message}" if event.message else ""
            self._out.note(
                f"{_NAMES[event.stage]}: {event.done:,} of {event.total:,}{_pace(event)}{doing}"
            )


class Bars:
    """Two bars, files and tokens, with the files' lines running above them."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._bars = _bars(out)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        if event.stage == "note":
            self._print(f"note: {self._out.advice(event.message)}")
            return
        if event.stage == "doing":
            self._print(f"{event.message} …")
            return
        if event.report is not None and _is_said(event.report, self._out):
            self._print(file_line(_advised(event.report, self._out)))
        name = _NAMES[event.stage]
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=event.total, pace="")
        pace = "; ".join(filter(None, (_pace(event).removeprefix(", "), event.message)))
        self._bars.update(self._tasks[name], completed=event.done, total=event.total, pace=pace)

    def _print(self, line: str) -> None:
        self._bars.console.print(clean(line), markup=False, highlight=False, soft_wrap=True)


def _bars(out: Output) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}", markup=False),
        console=Console(stderr=True, no_color=out.no_color or None),
        transient=True,
    )


def _pace(event: Event) -> str:
    """Return ", 1,200 tokens/s, 12 s left", as far as it can be told."""
    left = event.left
    if left is None:
        if not event.done or event.seconds <= 0:
            return ""
        left = (event.total - event.done) * event.seconds / event.done
    rate = f", {event.computed / event.seconds:,.0f} tokens/s" if event.computed else ""
    return rate + (f", {duration(left)} left" if event.done < event.total else "")
