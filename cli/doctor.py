"""`epicrag doctor`: what is wrong, and what mends it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from epicrag.cli.common import Common
from epicrag.cli.output import Output, count, line_of

if TYPE_CHECKING:
    from epicrag.checkup import Check
    from epicrag.config import Config
    from epicrag.doctor import Diagnosis
    from epicrag.pipeline import Pipeline


def doctor(
    common: Common,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what can be mended without losing anything.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Every checksum, and three tokens by the model.")
    ] = False,
) -> int:
    """Check the installation, the settings, the models and the index; say what is wrong and what mends it."""
    from epicrag.doctor import examine

    out = common.output

    def open_(config: Config) -> Pipeline:
        from epicrag.pipeline import Pipeline

        common.log(config.log)
        return Pipeline.open(config, say=out.note)

    def look(check: Check) -> None:
        check = _advised(out, check)
        if out.jsonl:
            out.object(check_json(check))
        elif not out.json:
            _print(out, check)

    found = examine(common.load, open_, deep=deep, fix=fix, look=look)
    if out.jsonl:
        out.object(summary_json(found))
    elif out.json:
        out.object(
            {
                "checks": [check_json(_advised(out, one)) for one in found.checks],
                **summary_json(found),
            }
        )
    else:
        _say(out, found)
    return found.exit_code


def _advised(out: Output, check: Check) -> Check:
    return replace(check, fix=out.advice(check.fix)) if check.fix else check


def _print(out: Output, check: Check) -> None:
    if out.quiet and check.state == "ok":
        return
    out.text(f"{check.state:<4}  {check.name:<24} {line_of(check.what)}")
    if check.fix and check.state != "ok":
        out.text(f"{'':<31}→ {line_of(check.fix)}")


def _say(out: Output, found: Diagnosis) -> None:
    for line in found.fixed:
        out.text(f"mended: {line}")
    states = [check.state for check in found.checks]
    n = {state: states.count(state) for state in ("ok", "warn", "fail")}
    warnings, failures = count(n["warn"], "warning"), count(n["fail"], "failure")
    out.note(f"{n['ok']} ok, {warnings}, {failures}")


def check_json(check: Check) -> dict[str, object]:
    """One check of `doctor --json`: fields may be added, never renamed."""
    values = asdict(check)
    return {name: values[name] for name in ("name", "state", "what", "fix")}


def summary_json(found: Diagnosis) -> dict[str, object]:
    return {"fixed": list(found.fixed), "exit_code": found.exit_code}
