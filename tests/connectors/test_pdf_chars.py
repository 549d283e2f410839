"""Letters that one glyph stands for are read in their own order."""

from __future__ import annotations

from epicrag.connectors.pdf_chars import Characters


class FakePage:
    def get_rotation(self) -> int:
        return 0

    def get_size(self) -> tuple[float, float]:
        return 600.0, 800.0


class FakeCharacters(Characters):
    """Characters with given places instead of PDFium's."""

    def __init__(self, letters: list[tuple[str, float]]) -> None:
        self._n = len(letters)
        self.text = [letter for letter, _ in letters]
        self._places = [place for _, place in letters]

    def _place(self, at: int) -> tuple[float, float, float, float]:
        return self._places[at], 0.0, self._places[at] + 5, 8.0


def test_a_ligature_that_was_turned_around_is_turned_back():
    # al-insan: alef, then lam and alef-hamza in one glyph, which came out the wrong way round
    letters = [("ا", 50.0), ("إ", 40.0), ("ل", 40.0), ("ن", 30.0)]
    assert FakeCharacters(letters).logical() == "الإن"


def test_letters_with_places_of_their_own_keep_their_order():
    letters = [("ا", 50.0), ("ل", 40.0), ("a", 30.0), ("b", 30.0)]
    assert FakeCharacters(letters).logical() == "الab"
