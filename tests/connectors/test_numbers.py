"""Values of sheets are shown as a person sees them."""

import datetime

import pytest

from epicrag.connectors.numbers import plain_number, shown


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (3128, "#,##0", "3128"),
        (3128.0, None, "3128"),
        (0.30000000000000004, None, "0.3"),
        (0.125, "0%", "12%"),
        (0.125, "0.0%", "12.5%"),
        (-81, '_(* #,##0_);_(* \\(#,##0\\);_(* "—"_);_(@_)', "-81"),
        (1234.5, '"€" #,##0.00', "€ 1234.50"),
        (1234.5, "[$€-407] #,##0.00", "€ 1234.50"),
        (5, '0.0 "kg"', "5.0 kg"),
        (0, '_(* #,##0_);_(* \\(#,##0\\);_(* "—"_);_(@_)', "0"),
        (12345, "0.00E+00", "1.23E+04"),
        (0.5, "# ?/?", "0.5"),
        (-0.001, "0.00", "0.00"),
        (7, ";;;", "7"),
        (True, None, "TRUE"),
        (None, None, ""),
        (" text ", None, "text"),
        (float("nan"), "0.0", "nan"),
        (datetime.datetime(2023, 5, 1), None, "2023-05-01"),
        (datetime.datetime(2023, 5, 1, 14, 30), None, "2023-05-01 14:30"),
        (datetime.date(2023, 5, 1), None, "2023-05-01"),
        (datetime.time(9, 5), None, "09:05"),
        (datetime.timedelta(hours=30, minutes=5), None, "30:05"),
    ],
)
def test_values(value: object, form: str | None, text: str):
    assert shown(value, form) == text


def test_large_numbers_are_in_full():
    assert plain_number(123456789012345) == "123456789012345"
