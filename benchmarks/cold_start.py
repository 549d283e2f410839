"""Where the seconds of a cold `epicrag ask` go, from the shell to the first token.

    python benchmarks/cold_start.py "a question about your documents"
    python benchmarks/cold_start.py --runs 9 --home DIR --model NAME "a question"
    python benchmarks/cold_start.py --tree ../before --tree . "a question"

Every figure is the median of so many fresh processes. The stages are run one after another in one process,
whatever the command itself overlaps; the commands are timed from outside, `ask` until the first byte of its
answer. CPU seconds say more than wall seconds where other programs run. With several `--tree`s (folders of this
project's sources) their processes take turns, so that what else the machine does falls on all of them alike.
The index of the configuration is used: ingest something first, and let each tree ask it once, so that the
passages' KV is on disk and the model has passed its check. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

Times = dict[str, tuple[float, float]]
"""Of each stage or command: wall seconds, CPU seconds."""


def main() -> None:
    given = _arguments()
    if given.stages:
        print(json.dumps(stages(given.question)))
        return
    trees = [tree.resolve() for tree in given.tree or [Path(__file__).parents[1]]]
    runs: dict[Path, list[Times]] = {tree: [] for tree in trees}
    for n in range(given.runs + 1):  # the first warms the page cache, and is not counted
        for tree in trees:
            times = one_run(tree, given.question, _environment(given, tree))
            if n:
                runs[tree].append(times)
    medians = {str(tree): of_runs(times) for tree, times in runs.items()}
    print("\n".join(table(list(medians.values()))))
    print(
        json.dumps({"runs": given.runs, "cores": os.cpu_count(), "trees": list(medians.values())})
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("question")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tree", type=Path, action="append", help="sources to be run; may repeat")
    parser.add_argument("--home", help="as of epicrag")
    parser.add_argument("--model", help="as of epicrag")
    parser.add_argument("--stages", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _environment(given: argparse.Namespace, tree: Path) -> dict[str, str]:
    named = {"EPICRAG_HOME": given.home, "EPICRAG_MODEL": given.model, "PYTHONPATH": str(tree)}
    named["PYTHONSAFEPATH"] = "1"  # or the folder it is run in would be imported before the tree
    return {**os.environ, **{name: value for name, value in named.items() if value}}


# --- in a fresh process: the stages ---------------------------------------------------------------


def stages(question: str) -> Times:
    """Run what `ask` runs, up to the first token, and time each part of it."""
    times: Times = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        times[name] = (time.perf_counter() - wall, time.process_time() - cpu)

    with timed("command line"):
        import epicrag.cli.main  # noqa: F401
    with timed("open the index"):
        from epicrag.pipeline import Pipeline

        pipeline = Pipeline.open()
        pipeline.sampling()  # where this imports torch, the next stage is nothing
    with timed("import torch"):
        import torch  # noqa: F401
    with timed("embedder"):
        _ = pipeline.embedder
    with timed("vectors"):
        _ = pipeline.vectors
    with timed("search"):
        pipeline.search(question)
    with timed("language model"):
        _ = pipeline.engine
    with timed("first token"):
        next(pipeline.stream(question))
    return times


# --- from outside: the commands -------------------------------------------------------------------


def one_run(tree: Path, question: str, environment: dict[str, str]) -> Times:
    """Run each command once in a fresh process."""
    program = "from epicrag.cli.main import run; run()"
    command = [sys.executable, "-c", program]
    here = [sys.executable, str(Path(__file__).resolve()), "--stages", question]
    times: Times = {"interpreter": timed_process([sys.executable, "-c", "pass"], environment)[0]}
    out: list[bytes] = []
    timed_process(here, environment, out.append)
    times |= {name: (wall, cpu) for name, (wall, cpu) in json.loads(b"".join(out)).items()}
    for name, arguments in (
        ("epicrag --help", ["--help"]),
        ("epicrag status", ["status"]),
        ("epicrag search", ["search", question]),
        ("epicrag ask", ["ask", "--max-tokens", "1", question]),
    ):
        whole, first = timed_process([*command, *arguments], environment)
        times[name] = whole
        if name == "epicrag ask":
            times["epicrag ask, first byte"] = (first, whole[1])
    return times


def timed_process(
    command: Sequence[str],
    environment: dict[str, str],
    keep: Callable[[bytes], object] = len,
) -> tuple[tuple[float, float], float]:
    """Return the (wall, CPU) seconds of a process, and the wall seconds to the first byte of its stdout."""
    began = time.perf_counter()
    first = 0.0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        while block := os.read(process.stdout.fileno(), 1 << 16):
            first = first or time.perf_counter() - began
            keep(block)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {' '.join(command)}")
    whole = time.perf_counter() - began
    return (whole, usage.ru_utime + usage.ru_stime), first


# --- what it comes to -----------------------------------------------------------------------------


def of_runs(runs: Sequence[Times]) -> dict[str, dict[str, float]]:
    """Return the medians over runs, by name."""
    return {
        name: {
            kind: round(median(run[name][at] for run in runs), 3)
            for at, kind in enumerate(("wall", "cpu"))
        }
        for name in runs[0]
    }


def table(trees: Sequence[dict[str, dict[str, float]]]) -> list[str]:
    """Return the lines of the table: a row for each stage, wall and CPU seconds for each tree."""
    heads = [f"{'wall s':>8} {'CPU s':>8}" for _ in trees]
    lines = [" | ".join([f"{'':<24}", *heads])]
    for name in trees[0]:
        cells = [f"{tree[name]['wall']:8.2f} {tree[name]['cpu']:8.2f}" for tree in trees]
        lines.append(" | ".join([f"{name:<24}", *cells]))
    return lines


if __name__ == "__main__":
    main()
