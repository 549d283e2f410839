"""A pydantic class as a JSON schema that allows nothing which pydantic refuses, as far as a grammar can."""

from __future__ import annotations

from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from epicrag.errors import UsageError

MOST = 1e15
"""A number without bounds lies within these: of digits there could be so many that it is infinite."""
_MOST_DIGITS = 20

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    f"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
)
_HOURS = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOURS}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOURS})"


def _span(units: str) -> str:
    """A duration of some of these units, one at least, in this order."""
    found = []
    for at in range(len(units)):
        rest = "".join(f"(?:[0-9]{{1,4}}{unit})?" for unit in units[at + 1 :])
        found.append(f"[0-9]{{1,4}}{units[at]}{rest}")
    return f"(?:{'|'.join(found)})"


_DURATION = f"P(?:{_span('YMWD')}(?:T{_span('HMS')})?|T{_span('HMS')})"


def schema_of(output_cls: type[BaseModel]) -> dict[str, Any]:
    """UsageError for what no schema can say."""
    return output_cls.model_json_schema(schema_generator=_Shape)


class _Shape(GenerateJsonSchema):
    def float_schema(self, schema: Any) -> dict[str, Any]:
        return _bounded(super().float_schema(schema))

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        bounds = {
            key: schema[key] for key in ("ge", "gt", "le", "lt", "multiple_of") if key in schema
        }
        if schema.get("max_digits") is None and schema.get("decimal_places") is None and bounds:
            number: Any = {"type": "float", **{key: float(bounds[key]) for key in bounds}}
            return self.float_schema(number)
        sign = "" if max(map(float, (bounds.get("ge", -1), bounds.get("gt", -1)))) >= 0 else "-?"
        digits = _digits(schema.get("max_digits"), schema.get("decimal_places"))
        return _text(sign + digits)

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        return _text(f"{_DATE}T{_TIME}")

    def date_schema(self, schema: Any) -> dict[str, Any]:
        return _text(_DATE)

    def time_schema(self, schema: Any) -> dict[str, Any]:
        return _text(_TIME)

    def timedelta_schema(self, schema: Any) -> dict[str, Any]:
        made = super().timedelta_schema(schema)
        return _bounded(made) if made.get("type") == "number" else _text(_DURATION)

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        made = super().bytes_schema(schema)
        if "maxLength" in made:  # it counts bytes, and a character may be several
            return _text(f"[ -~]{{{made.get('minLength', 0)},{made['maxLength']}}}")
        return made

    def set_schema(self, schema: Any) -> dict[str, Any]:
        return _without_unique(super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> dict[str, Any]:
        return _without_unique(super().frozenset_schema(schema))

    def json_schema(self, schema: Any) -> dict[str, Any]:
        raise UsageError(
            "a text that holds JSON (Json[…]) cannot be asked for",
            "use the type itself in place of Json[…]",
        )

    def model_field_schema(self, schema: Any) -> dict[str, Any]:
        self._refuse_path(schema)
        return super().model_field_schema(schema)

    def dataclass_field_schema(self, schema: Any) -> dict[str, Any]:
        self._refuse_path(schema)
        return super().dataclass_field_schema(schema)

    def _refuse_path(self, field: Any) -> None:
        """Of an alias that is a path the schema knows nothing: it tells the field's own name."""
        alias = field.get("validation_alias")
        paths = alias if isinstance(alias, list) and isinstance(alias[0], list) else [alias]
        names = [path for path in paths if not isinstance(path, list) or len(path) == 1]
        config = self._config
        by_name = getattr(config, "populate_by_name", False) or getattr(
            config, "validate_by_name", False
        )
        if not names and not by_name:
            raise UsageError(
                f"a field that is read from a path (AliasPath{tuple(paths[0])}) cannot be asked for",
                "give it a plain alias, or none",
            )


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


def _bounded(made: dict[str, Any]) -> dict[str, Any]:
    low = made.get("minimum", made.get("exclusiveMinimum"))
    high = made.get("maximum", made.get("exclusiveMaximum"))
    if low is None and (high is None or high > -MOST):
        made["minimum"] = -MOST
    if high is None and (low is None or low < MOST):
        made["maximum"] = MOST
    return made


def _digits(most: int | None, places: int | None) -> str:
    """A decimal number without a sign, of at most so many digits, and so many of them behind the point."""
    if most is None or places is not None:
        behind = _MOST_DIGITS if places is None else places
        whole = _whole(_MOST_DIGITS if most is None else most - behind)
        return rf"{whole}(?:\.[0-9]{{1,{behind}}})?" if behind else whole
    forms = [rf"{_whole(most - n)}\.[0-9]{{{n}}}" for n in range(1, most + 1)]
    return f"(?:{'|'.join([_whole(most), *forms])})"


def _whole(n: int) -> str:
    return f"(?:0|[1-9][0-9]{{0,{n - 1}}})" if n > 0 else "0"


def _without_unique(made: dict[str, Any]) -> dict[str, Any]:
    """Of a set: it takes the same value twice as once, unless there have to be several."""
    made.pop("uniqueItems", None)
    if made.get("minItems", 0) > 1:
        raise UsageError(
            f"a set of at least {made['minItems']} elements cannot be asked for: nothing keeps them apart",
            "use a list, or a set without min_length",
        )
    return made
