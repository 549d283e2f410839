"""LlamaIndex's `MetadataFilters` as filters of the index."""

from __future__ import annotations

from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from epicrag.errors import UsageError
from epicrag.index.fields import ALIASES
from epicrag.index.filters import (
    DEEPEST,
    HOLDS,
    HOLDS_ANY_CASE,
    MOST,
    Both,
    Compare,
    Either,
    Every,
    Filter,
    Node,
    Not,
)

_OPERATORS = {
    FilterOperator.EQ: "=",
    FilterOperator.NE: "!=",
    FilterOperator.GT: ">",
    FilterOperator.GTE: ">=",
    FilterOperator.LT: "<",
    FilterOperator.LTE: "<=",
    FilterOperator.IN: "in",
    FilterOperator.ANY: "in",
    FilterOperator.NIN: "not in",
    FilterOperator.CONTAINS: "=",
    FilterOperator.TEXT_MATCH: HOLDS,
    FilterOperator.TEXT_MATCH_INSENSITIVE: HOLDS_ANY_CASE,
}


def to_filter(filters: MetadataFilters) -> Filter:
    """Return the same filter for the index. UsageError: an operator that has no meaning there, or more than a
    filter of the index may hold."""
    comparisons: list[Compare] = []
    root = _group(filters, comparisons, 1)
    return Filter(str(filters.model_dump()), root, tuple(comparisons))


def _group(filters: MetadataFilters, comparisons: list[Compare], depth: int) -> Node:
    if depth > DEEPEST:
        raise UsageError(
            f"the filters stand in more than {DEEPEST} levels", "take some of them out"
        )
    nodes = [
        _group(one, comparisons, depth + 1)
        if isinstance(one, MetadataFilters)
        else _one(one, comparisons)
        for one in filters.filters
    ]
    if not nodes:
        return Every()
    # LlamaIndex's "not" holds where none of the filters does.
    joint = Both if filters.condition == FilterCondition.AND else Either
    whole = nodes[0]
    for node in nodes[1:]:
        whole = joint(whole, node)
    return Not(whole) if filters.condition == FilterCondition.NOT else whole


def _one(one: MetadataFilter, comparisons: list[Compare]) -> Node:
    name = one.key.casefold()
    name = ALIASES.get(name, name)
    values = one.value if isinstance(one.value, list) else [one.value]
    texts = tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    if one.operator == FilterOperator.ALL:
        nodes = [_compare(name, "=", (text,), comparisons) for text in texts]
        whole = nodes[0] if nodes else Every()
        for node in nodes[1:]:
            whole = Both(whole, node)
        return whole
    if one.operator == FilterOperator.IS_EMPTY:
        return Not(_compare(name, "~", ("*",), comparisons))
    if one.operator not in _OPERATORS:
        raise UsageError(
            f"the index has no filter {one.operator.value!r} (field {one.key!r})",
            f"it has {', '.join(operator.value for operator in _OPERATORS)}, all and is_empty",
        )
    return _compare(name, _OPERATORS[one.operator], texts, comparisons)


def _compare(name: str, operator: str, values: tuple[str, ...], comparisons: list[Compare]) -> Node:
    node = Compare(name, operator, values)
    comparisons.append(node)
    if len(comparisons) > MOST:
        raise UsageError(
            f"there are more than {MOST} filters",
            "many values of one field go into one filter with the operator in",
        )
    return node
