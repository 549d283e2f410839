"""LlamaIndex's filters mean here what they mean there."""

from __future__ import annotations

import pytest
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from epicrag.errors import UsageError
from epicrag.index.fields import Facts
from epicrag.llamaindex import EpicragRetriever
from epicrag.llamaindex.filters import to_filter

META = {"year": 2021, "author": "Ann Lee", "tags": ("a", "b"), "signed": True}
FACTS = Facts("/docs/a.md", "text/markdown", "Title", META, 2, "A > B", None)


def fits(key: str, operator: FilterOperator, value: object) -> bool:
    one = MetadataFilter(key=key, operator=operator, value=value)
    return to_filter(MetadataFilters(filters=[one])).root.test(FACTS)


@pytest.mark.parametrize(
    ("key", "operator", "value", "expected"),
    [
        ("year", FilterOperator.EQ, 2021, True),
        ("year", FilterOperator.NE, 2021, False),
        ("year", FilterOperator.GT, 2021, False),
        ("year", FilterOperator.GTE, 2021, True),
        ("year", FilterOperator.LT, 2021.5, True),
        ("year", FilterOperator.LTE, 2020, False),
        ("author", FilterOperator.IN, ["Bob", "Ann Lee"], True),
        ("author", FilterOperator.NIN, ["Bob", "Ann Lee"], False),
        ("tags", FilterOperator.ANY, ["b", "c"], True),
        ("tags", FilterOperator.ALL, ["a", "b"], True),
        ("tags", FilterOperator.ALL, ["a", "c"], False),
        ("tags", FilterOperator.CONTAINS, "b", True),
        ("author", FilterOperator.TEXT_MATCH, "nn L", True),
        ("author", FilterOperator.TEXT_MATCH, "*", False),
        ("author", FilterOperator.TEXT_MATCH, "ann", False),
        ("file_name", FilterOperator.TEXT_MATCH_INSENSITIVE, "A.M", True),
        ("file_path", FilterOperator.TEXT_MATCH, "ocs/a", True),
        ("author", FilterOperator.TEXT_MATCH_INSENSITIVE, "ann", True),
        ("editor", FilterOperator.IS_EMPTY, None, True),
        ("author", FilterOperator.IS_EMPTY, None, False),
        ("signed", FilterOperator.EQ, "true", True),
        ("file_name", FilterOperator.EQ, "a.md", True),
        ("file_path", FilterOperator.EQ, "/docs/a.md", True),
        ("page", FilterOperator.EQ, 2, True),
    ],
)
def test_operators(key, operator, value, expected):
    assert fits(key, operator, value) is expected


def test_conditions_nest():
    year = MetadataFilter(key="year", value=2021)
    bob = MetadataFilter(key="author", value="Bob")

    def tested(condition: FilterCondition, *filters) -> bool:
        return to_filter(MetadataFilters(filters=list(filters), condition=condition)).root.test(
            FACTS
        )

    assert tested(FilterCondition.OR, year, bob)
    assert not tested(FilterCondition.AND, year, bob)
    inner = MetadataFilters(filters=[bob], condition=FilterCondition.NOT)
    assert tested(FilterCondition.AND, year, inner)
    assert tested(FilterCondition.AND)
    assert not tested(FilterCondition.NOT, year, bob)  # none of them may hold


def test_more_filters_than_an_index_takes_are_refused():
    many = [MetadataFilter(key="year", value=n) for n in range(5_000)]
    years = list(range(5_000))
    for_all = MetadataFilter(key="year", value=years, operator=FilterOperator.ALL)
    deep = MetadataFilters(filters=many[:1])
    for _ in range(60):
        deep = MetadataFilters(filters=[deep], condition=FilterCondition.NOT)
    for filters in (MetadataFilters(filters=many), MetadataFilters(filters=[for_all]), deep):
        with pytest.raises(UsageError, match="more than"):
            to_filter(filters)
    assert to_filter(MetadataFilters(filters=many[:200])).root.test(FACTS) is False
    assert fits("year", FilterOperator.IN, years)


def test_the_retriever_hands_filters_to_the_search(pipeline):
    EpicragRetriever(pipeline, filters="year>=2020").retrieve("code?")
    filters = MetadataFilters(filters=[MetadataFilter(key="year", value=2021)])
    EpicragRetriever(pipeline, filters=filters).retrieve("code?")
    assert pipeline.filters[0] == "year>=2020"
    assert pipeline.filters[1].root.test(FACTS)


def test_unknown_operators_are_refused(monkeypatch):
    from epicrag.llamaindex import filters as room

    monkeypatch.setattr(room, "_OPERATORS", {})
    with pytest.raises(UsageError, match="year"):
        fits("year", FilterOperator.EQ, 1)
