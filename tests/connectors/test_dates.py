"""Dates of all sorts, told alike."""

from __future__ import annotations

import pytest

from epicrag.connectors.dates import dated, iso_date


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2024-10-01T12:34:56Z", "2024-10-01"),
        ("20241001", "2024-10-01"),
        ("2024-10", "2024-10"),
        (" 1999 ", "1999"),
        ("Tue, 01 Oct 2024 12:34:56 -0500", "2024-10-01"),
        ("1 Oct 24 12:00", "2024-10-01"),
        ("2024-02-30", None),
        ("yesterday", None),
        ("", None),
        ("Mon, 99 Foo 2024", None),
        ("20241", None),
    ],
)
def test_dates_are_told_alike(text: str, found: str | None):
    assert iso_date(text) == found


def test_meta_has_the_year_as_a_number():
    assert dated("2024-10-01") == {"date": "2024-10-01", "year": 2024}
    assert dated(None) == dated("soon") == {}
