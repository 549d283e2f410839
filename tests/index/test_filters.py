"""A filter means what it says, or is refused with the place where it goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.errors import UsageError
from epicrag.index.fields import Facts
from epicrag.index.filters import Filter, parse_filter

META = {
    "year": 2021,
    "date": "2021-03-04",
    "tags": ("x", "Draft"),
    "author": "Ann Lee",
    "signed": True,
    "edition": "3",
}
FACTS = Facts("/docs/manual/a.md", "text/markdown", "The Title", META, 2, "A > B c", "slide 2")


@pytest.mark.parametrize(
    "text",
    [
        'year>=2020 and path~"manual/*"',
        "tags=draft",
        "tags in (y, x)",
        "date>=2021-03 and date<2021-04",
        "date=2021 and not date>2021",
        "date<='2021-03-04'",
        "not year=2020",
        "not missing=1",
        "ext in (md, pdf) and ext=.MD",
        "ext not in [txt]",
        "heading='b c' and heading=\"A > B c\"",
        "page<3 and (name=a.md or name=b)",
        "PAGE == 2",
        "signed=true and signed!=false",
        'title~"*title"',
        "author~ann* or author=x and author=y",
        "path=manual/a.md and path=/docs/manual/a.md",
        "path~*.md and path~/docs/* and path!~other/*",
        "media~text/*",
        "edition>2 and edition<10",
        'part="slide 2"',
        "year!=2020",
        r'author!="say \"hi\""',
        "'author'='ann lee'",
    ],
)
def test_it_fits(text: str):
    assert parse_filter(text).root.test(FACTS)


@pytest.mark.parametrize(
    "text",
    [
        "year>=2022",
        "missing=1",
        "missing!=1",
        "missing not in (1)",
        "tags!=draft",
        "tags not in (y, x)",
        "path~anual/*",
        "path=a",
        "name=A.md",
        "path=Manual/a.md",
        "year>abc",
        "year~3*",
        "date>2021",
        "author<Ann",
        "page=1 or page=3",
        "year=2021 and not (page=2)",
    ],
)
def test_it_does_not_fit(text: str):
    assert not parse_filter(text).root.test(FACTS)


def test_a_path_from_here_is_meant_from_here(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = replace(FACTS, path=f"{tmp_path}/d/a.md")
    assert parse_filter("path~./d/*").root.test(facts)
    assert not parse_filter("path~./e/*").root.test(facts)


def test_a_year_is_read_off_a_date():
    facts = replace(FACTS, meta={"date": "2019-05-01"})
    assert parse_filter("year=2019").root.test(facts)
    assert not parse_filter("year=2019").root.test(replace(FACTS, meta={"date": "spring"}))


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ("", 1, "a field"),
        ("year", 5, "an operator"),
        ("year>=", 7, "a value"),
        ("year=2020 and", 14, "a field"),
        ("(year=1", 8, '")"'),
        ("year=1 foo=2", 8, '"and", "or" or the end'),
        ("a = %", 5, "a field, a value or an operator"),
        ("x in ()", 7, "a value"),
        ("x not 3", 7, '"in"'),
        ("and=1", 1, "a field"),
        ('a="open', 3, "a field, a value or an operator"),
        ("(" * 200 + "a=1", 51, "levels"),
        ("not " * 200 + "a=1", 201, "levels"),
    ],
)
def test_what_is_no_filter_is_refused_with_the_place(text: str, at: int, wanted: str):
    with pytest.raises(UsageError) as error:
        parse_filter(text)
    assert f"at character {at}:" in error.value.message
    assert wanted in error.value.message


def test_a_filter_of_a_megabyte_is_refused():
    with pytest.raises(UsageError, match="longer than"):
        parse_filter("a=1 or " * 200_000 + "a=1")


@given(st.text(alphabet="ab=<>!~()[],\"' \\andortin1.", max_size=60))
def test_any_text_is_a_filter_or_refused(text: str):
    try:
        parsed = parse_filter(text)
    except UsageError:
        return
    assert isinstance(parsed, Filter)
    assert parsed.root.test(FACTS) in (True, False)


@pytest.fixture
def library(catalog, make, embedder):
    for n in range(10):
        document, chunks = make(f"/d/{n}.md", f"text {n} a ", f"text {n} b")
        meta = {"year": 2015 + n, "author": "Ann" if n % 2 else "Bob"}
        document = replace(document, meta=meta)
        catalog.put_document(document, chunks, embedder.passages([c.text for c in chunks]))
    return catalog


def test_rows_are_those_of_the_chunks_that_fit(library):
    def texts(text: str) -> list[str]:
        return sorted(library.chunk(row).text for row in parse_filter(text).rows(library))

    assert texts("year>=2023 and author=ann") == ["text 9 a ", "text 9 b"]
    assert texts("year>=2023 and author=ann and page=2") == ["text 9 b"]
    assert len(texts("heading=B")) == 20
    assert texts("year>3000") == []


def test_each_row_is_checked_again_on_its_own(library):
    wanted = parse_filter("year>=2023 and page=2")
    rows = wanted.rows(library)
    everything = [row for row, _ in library.all_chunks()]
    assert {row for row in everything if wanted.allows(library, row)} == set(rows)


def test_an_unknown_field_is_refused_with_the_nearest_one(library):
    with pytest.raises(UsageError) as error:
        parse_filter("page=1 and yaer>=2020").rows(library)
    assert "'yaer', at character 12" in error.value.message
    assert "did you mean year?" in error.value.hint
    assert "author" in error.value.hint


@given(
    st.recursive(
        st.sampled_from(["year=2021", "year=1", "page=2", "page=9", "heading=B"]),
        lambda inner: st.one_of(
            inner.map("not ({})".format),
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
                lambda t: f"({t[0]}) {t[1]} ({t[2]})"
            ),
        ),
        max_leaves=6,
    )
)
def test_a_document_is_judged_without_its_chunks_only_where_they_cannot_matter(text: str):
    root = parse_filter(text).root
    verdict = root.test(replace(FACTS, page=None, heading=None, part=None, is_document=True))
    places = [(page, heading) for page in (None, 2, 9) for heading in (None, "A > B")]
    by_chunk = {root.test(replace(FACTS, page=p, heading=h)) for p, h in places}
    assert None not in by_chunk
    assert verdict is None or by_chunk == {verdict}


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**4000), 2**1023])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["nan", "inf", "9" * 400, "1e999", "²²²²-01", "٢٠٢٠", "2020-13-99"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@pytest.mark.parametrize("field", ["year", "date", "x"])
@given(value=ODD, wanted=st.sampled_from(["2020", "2020-01", "nan", "inf", "1e999", "a*"]))
def test_no_metadata_of_one_document_breaks_a_filter_for_all(field: str, value, wanted: str):
    value = tuple(value) if isinstance(value, list) else value
    facts = replace(FACTS, meta={field: value})
    for operator in ("=", "!=", "<", "<=", ">", ">=", "~", "!~"):
        for asked in {field, "year"}:
            assert parse_filter(f"{asked}{operator}{wanted}").root.test(facts) in (True, False)


def test_what_no_float_holds_compares_as_text():
    facts = replace(FACTS, meta={"title2": "NaN", "size": "inf", "year": 10**400})
    for text in ("title2=nan", "size=inf", "not year>=2020", "not year=1e999"):
        assert parse_filter(text).root.test(facts), text
