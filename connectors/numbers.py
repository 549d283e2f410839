"""Values of sheets as a person sees them: dates as ISO, percentages, units, no noise behind the point."""

from __future__ import annotations

import datetime
import math
import re
from functools import lru_cache
from typing import NamedTuple

_DIGITS = re.compile(r"[0#?][0#?,. ]*")
_TOKENS = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|_.|\*.|\[\$(?P<money>[^\]-]*)[^\]]*\]|\[[^\]]*\]'
    r"|(?P<digits>[0#?](?:[0#?,. ]*[0#?])?,*)|(?P<general>[Gg]eneral)|(?P<power>[Ee][+-]0+)|(?P<other>.)"
)


class _Shape(NamedTuple):
    """A number format, as far as it is kept: thousands are not grouped, so that 3128 is found as 3128."""

    before: str
    after: str
    decimals: int | None
    percent: bool
    power: bool


def shown(value: object, form: str | None = None) -> str:
    """Return a cell's value as text. `form` is the number format that the cell has in its sheet."""
    match value:
        case None:
            return ""
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return _number(value, form or "General")
        case datetime.datetime():
            return _moment(value)
        case datetime.date():
            return value.isoformat()
        case datetime.time():
            return value.isoformat("seconds" if value.second else "minutes")
        case datetime.timedelta():
            return _duration(value)
    return str(value).strip()


def plain_number(value: float) -> str:
    """A number in full, without a tail of zeros or of rounding errors."""
    if not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    return f"{value:.12g}"


def _number(value: float, form: str) -> str:
    shape = _shape(form, value < 0)
    if shape is None or not math.isfinite(value):
        return plain_number(value)
    scaled = value * 100 if shape.percent else value
    if shape.power:
        text = f"{scaled:.{shape.decimals or 0}E}"
    elif shape.decimals is None:
        text = plain_number(scaled)
    else:
        text = f"{scaled:.{shape.decimals}f}"
    # Brackets stand for a minus sign, which is what a reader and a model know.
    sign = "-" if text.startswith("-") and text.strip("-0.") else ""
    return f"{sign}{shape.before}{text.lstrip('-')}{shape.after}".strip()


@lru_cache(maxsize=1024)
def _shape(form: str, negative: bool) -> _Shape | None:
    """Take a format apart, or that part of it which is for negative numbers; None for one that says nothing
    of how a number looks."""
    parts = re.findall(r'(?:"[^"]*"|\\.|[^;])+', form) or ["General"]
    section = parts[1] if negative and len(parts) > 1 else parts[0]
    before, after, digits = "", "", None
    percent = power = False
    for token in _TOKENS.finditer(section):
        text = token["quoted"] or token["escaped"] or token["money"] or ""
        if token["digits"]:
            digits = (digits or "") + token["digits"]
        elif token["general"]:
            digits = digits or ""
        elif token["power"]:
            power = True
        elif token["other"] == "%":
            percent, text = True, "%"
        elif token["other"] and token["other"] in "/@":
            return None  # a fraction, or text
        elif token["other"] and token["other"] in "$€£¥ +":
            text = token["other"]
        if text in ("(", ")", "-"):
            text = ""
        if digits is None:
            before += text
        else:
            after += text
    if digits is None:
        return None
    return _Shape(before.lstrip(), after.rstrip(), _decimals(digits), percent, power)


def _decimals(digits: str) -> int | None:
    """How many digits stand behind the point; None where the format leaves that open."""
    if not digits:
        return None
    _, point, tail = digits.rpartition(".")
    return sum(sign in "0#?" for sign in tail) if point else 0


def _moment(value: datetime.datetime) -> str:
    if value.time() == datetime.time():
        return value.date().isoformat()
    return value.replace(tzinfo=None).isoformat(" ", "seconds" if value.second else "minutes")


def _duration(value: datetime.timedelta) -> str:
    seconds = round(value.total_seconds())
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    hours, rest = divmod(seconds, 3600)
    text = f"{sign}{hours}:{rest // 60:02}"
    return f"{text}:{rest % 60:02}" if rest % 60 else text
