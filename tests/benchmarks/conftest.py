"""The benches are scripts that import each other by name."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def beside_the_benches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
