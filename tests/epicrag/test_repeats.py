"""A model that goes round in circles is noticed at the second time, and nobody else is."""

from __future__ import annotations

from epicrag.repeats import REPEATS, Repeats, UntilRepeat


def noticed_after(text: str) -> str | None:
    """Feed a text character by character; return what had been said when it was noticed."""
    repeats = Repeats()
    for at, character in enumerate(text):
        if repeats.feed(character):
            return text[: at + 1]
    return None


def test_the_same_sentence_twice_is_noticed():
    text = "The battery lasts 14 months. [1] It is a battery. The battery lasts 14 months. And so"
    assert noticed_after(text) == text[: -len(" And so")]


def test_a_sentence_over_several_pieces_is_one():
    repeats = Repeats()
    assert not repeats.feed("The fee is ")
    assert not repeats.feed("five euros. The fee")
    assert repeats.feed(" is five euros.")


def test_sentences_that_differ_are_not():
    assert noticed_after("The fee is 5 euros. The fee is 6 euros. The fee is 7 euros.") is None


def test_short_ones_may_stand_twice():
    assert noticed_after("Yes. It is. Yes. It is. Step 2. Step 2.") is None


def test_code_may_repeat_itself():
    assert noticed_after("```\nlet a = b . c d\nlet a = b . c d\n```\n") is None


def test_cjk_text_without_spaces_is_left_alone():
    assert noticed_after("今天天气很好。今天天气很好。") is None


def test_short_loops_are_noticed_soon():
    for loop in ("1", "0 ", "Yes.\n", "- No\n", "今天天气很好。", "| a | b |\n"):
        noticed = noticed_after("The fee is " + loop * 400)
        assert noticed is not None and len(noticed) < 150, loop
    assert noticed_after("\n" * 1000) is not None


def test_rules_tables_and_long_numbers_are_no_loops():
    rule = "| " + "-" * 120 + " |\n" + "." * 100 + "\n"
    zeros = "| June | " + "0 | " * 20 + "\n| July | " + "0 | " * 20 + "\n"
    assert (
        noticed_after(f"{rule}{zeros}It is 10{'0' * 80} grains.\n```\n{'0, ' * 200}\n```\n") is None
    )


class Said:
    """A generation of one sentence, over and over."""

    finish_reason = "stop"

    def __init__(self, *, is_constrained: bool) -> None:
        self.is_constrained = is_constrained
        self._left = 5

    def __next__(self) -> str:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return "The fee is five euros. "

    def close(self) -> None:
        self._left = 0


def test_what_follows_a_grammar_is_read_to_its_end_and_prose_is_stopped():
    json, prose = (UntilRepeat(Said(is_constrained=held)) for held in (True, False))  # type: ignore[arg-type]
    assert (len(list(json)), json.finish_reason) == (5, "stop")
    assert (len(list(prose)), prose.finish_reason) == (2, REPEATS)
