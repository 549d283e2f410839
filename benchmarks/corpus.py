"""Messy real files with a manifest: what is read of each, and whether a search finds the answers.

The manifest is a table with a head and tab-separated columns, of which these are used: `file` (below the
manifest's folder), `expect` (ok, empty, reject or ocr), `question` and `answer`. Every file is ingested
without KV into an index of its own, and every question is searched for. Printed: a table by format, the files
that were not treated as expected, the questions whose answer stands in none of the first hits, and one line
of JSON. Run it as `python -m benchmarks.corpus MANIFEST`, or `python benchmarks/corpus.py MANIFEST`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from epicrag.types import Hit

FIRST = 5

EXPECTED = {
    "ok": {"added"},
    "empty": {"empty"},
    "reject": {"failed", "unsupported", "empty"},
    "ocr": {"failed", "added"},
}
"""The statuses that each expectation allows; a scan is read where an OCR engine is installed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One file of the manifest."""

    file: str
    expect: str
    question: str
    answer: str

    @property
    def format(self) -> str:
        return PurePosixPath(self.file).suffix.lower() or "none"


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one file. `rank` is that of the first hit with the answer, None when none of the first
    has it; `in_text` says whether the answer stands in what was read."""

    case: Case
    status: str
    reason: str | None
    rank: int | None = None
    in_text: bool = False
    own: bool = False
    """Whether that hit is a passage of this very file."""

    @property
    def is_expected(self) -> bool:
        return self.status in EXPECTED[self.case.expect]

    @property
    def is_asked(self) -> bool:
        return bool(self.case.question) and self.status == "added"


def cases_of(manifest: Path) -> list[Case]:
    """Read the manifest."""
    with open(manifest, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Case(r["file"], r["expect"], r["question"], r["answer"]) for r in rows]


def squeezed(text: str) -> str:
    """Return text as it is compared: without white space and case, and with one kind of quotes and dashes."""
    text = re.sub("[\u2018\u2019\u201b`´]", "'", text)
    text = re.sub("[\u201c\u201d\u201e]", '"', text)
    text = re.sub("[\u2010-\u2015\u2212]", "-", text)
    return re.sub(r"[\s\u200b-\u200f\u202a-\u202e\ufeff|*_`\\]+", "", text).casefold()


def answers_in(text: str, answer: str) -> bool:
    """Does a text hold the answer? Where it is a list, all of its parts."""
    text = squeezed(text)
    if squeezed(answer) in text:
        return True
    parts = [squeezed(part) for part in re.split(r",| and | و ", answer)]
    return len(parts) > 1 and all(part in text for part in parts if part)


def rank_of(hits: Sequence[Hit], answer: str) -> int | None:
    """The rank of the first hit that holds the answer, from 1."""
    ranks = (n for n, hit in enumerate(hits, 1) if answers_in(hit.chunk.model_text, answer))
    return next(ranks, None)


def run(pipeline: Any, folder: Path, cases: Sequence[Case]) -> Iterator[Found]:
    """Ingest the folder, and yield what became of each file of the manifest."""
    result = pipeline.ingest([folder / case.file for case in cases], kv=False, yes=True)
    reports = {report.path: report for report in result.files}
    root = folder.resolve().as_posix()
    for case in cases:
        report = reports.get(f"{root}/{case.file}")
        status = "added" if report and report.status == "unchanged" else report and report.status
        found = Found(case, status or "missing", report.reason if report else None)
        if found.is_asked:
            found = _asked(pipeline, f"{root}/{case.file}", found)
        yield found


def _asked(pipeline: Any, path: str, found: Found) -> Found:
    case = found.case
    hits = pipeline.search(case.question, k=FIRST)
    rank = rank_of(hits, case.answer)
    text = "".join(chunk.text for _, chunk in pipeline.catalog.chunks(path))
    own = rank is not None and hits[rank - 1].chunk.document == path
    return Found(case, found.status, found.reason, rank, answers_in(text, case.answer), own)


def table(found: Sequence[Found]) -> list[str]:
    """The lines of a table by format."""
    lines = [
        "| format | files | as expected | questions | answer read | found in first 5 | first |"
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    formats = sorted({one.case.format for one in found})
    for name in [*formats, "all"]:
        mine = [one for one in found if name in (one.case.format, "all")]
        asked = [one for one in mine if one.case.question and one.case.expect != "reject"]
        counts = Counter(
            expected=sum(one.is_expected for one in mine),
            read=sum(one.in_text for one in asked),
            found=sum(one.rank is not None for one in asked),
            first=sum(one.rank == 1 for one in asked),
        )
        lines.append(
            f"| {name} | {len(mine)} | {counts['expected']} | {len(asked)} | {counts['read']} "
            f"| {counts['found']} | {counts['first']} |"
        )
    return lines


def report(found: Sequence[Found]) -> dict[str, Any]:
    """Print the table and what went wrong; return the line of JSON."""
    print("\n".join(table(found)))
    for one in found:
        if not one.is_expected:
            print(
                f"not as expected ({one.case.expect}): {one.case.file}: {one.status}: {one.reason}"
            )
    for one in found:
        if one.is_asked and one.rank is None:
            why = "" if one.in_text else " (not in the text that was read)"
            print(f"not found: {one.case.file}: {one.case.question} -> {one.case.answer}{why}")
    asked = [one for one in found if one.is_asked]
    return {
        "files": len(found),
        "expected": sum(one.is_expected for one in found),
        "questions": sum(bool(one.case.question) for one in found),
        "read": sum(one.in_text for one in asked),
        "found": sum(one.rank is not None for one in asked),
        "own": sum(one.own for one in asked),
        "first": sum(one.rank == 1 for one in asked),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--index", type=Path, help="keep the index there, and use it again")
    parser.add_argument("--mode", choices=("hybrid", "dense", "words"), default=None)
    parser.add_argument("--max-bytes", type=int, default=None, help="leave out larger files")
    given = parser.parse_args(arguments)
    from epicrag.pipeline import Pipeline

    cases, folder = cases_of(given.manifest), given.manifest.parent
    if given.max_bytes:
        cases = [c for c in cases if (folder / c.file).stat().st_size <= given.max_bytes]
    flags = {"search_mode": given.mode} if given.mode else {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        index = str(given.index or Path(scratch) / "index")
        with Pipeline.open(create=True, index=index, **flags) as pipeline:
            found = list(run(pipeline, folder, cases))
    facts = report(found)
    print(
        json.dumps(
            {
                **facts,
                "mode": given.mode or "default",
                "seconds": round(time.perf_counter() - began),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
