"""Chunks tile their document, keep to their budget, and break where a reader would."""

import random
import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epicrag.connectors.code import parse_code
from epicrag.connectors.joints import whole_character
from epicrag.connectors.markdown import parse_markdown
from epicrag.connectors.split import TokenCounter, split
from epicrag.connectors.text import parse_text
from epicrag.types import Chunk, Document, Table


class LetterCounter:
    """Tokens of a few letters: a space or a capital begins one, and none is longer than five."""

    def count(self, text: str) -> int:
        return len(self.ends(text))

    def ends(self, text: str) -> Sequence[int]:
        ends, start = [], 0
        for at in range(1, len(text) + 1):
            if at == len(text) or at - start == 5 or text[at].isspace() or text[at].isupper():
                ends.append(at)
                start = at
        return ends


def markdown(text: str, title: str | None = None) -> Document:
    parsed = parse_markdown(text)
    return Document(
        "/a.md", text, "", title=title or parsed.title, anchors=parsed.anchors, blocks=parsed.blocks
    )


def plain(text: str) -> Document:
    parsed = parse_text(text)
    return Document("/a.txt", text, "", anchors=parsed.anchors, blocks=parsed.blocks)


def check(document: Document, counter: TokenCounter, budget: int) -> list[Chunk]:
    """Split, and assert what holds for all documents, counters and budgets."""
    chunks = split(document, counter, chunk_tokens=budget)
    assert "".join(chunk.text for chunk in chunks) == document.text
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert chunk.text == document.text[chunk.start : chunk.end] != ""
        assert chunk.n_tokens == counter.count(chunk.model_text)
        one = chunk.end <= whole_character(document.text, chunk.start)
        assert chunk.n_tokens <= budget or one
        assert chunk.start == 0 or chunk.start == chunks[chunk.ordinal - 1].end
    return chunks


HOSTILE = st.text(
    st.sampled_from("ab A#.\n\n -|`。今🚀👨👩\u200d\u0301\u0308🇩🇪\ufffd\u3000\t\U0001f3fd1"),
    max_size=300,
)


@given(HOSTILE, st.integers(1, 40))
def test_chunks_tile_any_text_within_any_budget(text: str, budget: int):
    check(markdown(text, title="A title"), LetterCounter(), budget)


@given(st.text(max_size=200), st.integers(1, 12))
def test_chunks_tile_any_unicode_within_any_budget(octets_text: str, budget: int):
    check(plain(octets_text.replace("\r", "\n")), _octets(), budget)


def _octets() -> TokenCounter:
    class Octets:
        def count(self, text: str) -> int:
            return len(text.encode("utf-8", "surrogatepass"))

        def ends(self, text: str) -> Sequence[int]:
            sizes = (len(c.encode("utf-8", "surrogatepass")) for c in text)
            return [at for at, size in enumerate(sizes, 1) for _ in range(size)]

    return Octets()


def test_counts_that_change_at_the_edges_are_found_out():
    class Sticky(LetterCounter):
        """A text costs three tokens more than its parts within a longer text."""

        def count(self, text: str) -> int:
            return super().count(text) + 3

    check(plain("some words and more words\n\n" * 40), Sticky(), 20)


def test_empty_text_has_no_chunks(words):
    assert split(Document("/a", "", ""), words) == []


def test_a_budget_of_nothing_is_refused(words):
    with pytest.raises(ValueError, match="at least 1"):
        split(plain("a"), words, chunk_tokens=0)


def test_emoji_and_cjk_are_never_cut_in_half(octets):
    text = "🚀这" * 50
    chunks = check(plain(text), octets, 1)
    assert [chunk.text for chunk in chunks] == list(text)


@pytest.mark.parametrize(
    "character", ["👨‍👩‍👧‍👦", "e\u0301", "🇩🇪", "👍🏽", "क्षि"[:2], "각", "1️⃣"[:2]]
)
def test_characters_of_several_code_points_stay_whole(octets, character: str):
    chunks = check(plain(character * 20), octets, 2)
    assert {chunk.text for chunk in chunks} == {character}


def test_a_pile_of_accents_without_end_is_still_cut(octets):
    chunks = check(plain("a" + "\u0301" * 5000), octets, 8)
    assert len(chunks) > 100


def test_chinese_is_cut_at_its_full_stops(octets):
    chunks = check(plain("今天天气很好。明天下雨。" * 300), octets, 120)
    assert all(chunk.text.endswith("。") for chunk in chunks)


@pytest.mark.parametrize(
    "sentence", ["هل هذا صحيح؟ ", "It is 3.5 by Mr. Lee. ", 'He said "no." ', "यह सच है। ", "Stop! "]
)
def test_prose_is_cut_after_sentences(sentence: str):
    chunks = check(plain(sentence * 100), LetterCounter(), 40)
    assert len(chunks) > 3
    assert all(chunk.text.endswith(sentence) for chunk in chunks)


def test_without_sentences_text_is_cut_between_words():
    chunks = check(plain("word " * 500), LetterCounter(), 30)
    assert all(chunk.text.startswith("word") for chunk in chunks)


def test_small_sections_are_packed_and_larger_ones_begin_a_chunk():
    small = "".join(f"## H{n}\n\nshort text\n\n" for n in range(6))
    chunks = check(markdown(small), LetterCounter(), 60)
    assert 1 < len(chunks) < 6
    assert all(chunk.text.startswith("## ") for chunk in chunks)
    large = "".join(f"## H{n}\n\n{'some text here. ' * 8}\n\n" for n in range(5))
    assert len(check(markdown(large), LetterCounter(), 60)) == 5


def test_a_heading_is_not_left_behind():
    text = (
        "# T\n\n"
        + "".join(f"{'filling words. ' * 7}\n\n## Next {n}\n\n" for n in range(8))
        + "end\n"
    )
    for budget in range(25, 70):
        chunks = check(markdown(text), LetterCounter(), budget)
        last_lines = [chunk.text.rstrip().rsplit("\n", 1)[-1] for chunk in chunks]
        assert not any(line.startswith("## ") for line in last_lines)


def test_code_is_cut_at_lines_with_their_indentation():
    source = "def f():\n" + "    value = compute(1). another\n" * 100
    parsed = parse_code(source, "text/x-python")
    document = Document("/a.py", source, "", anchors=parsed.anchors, blocks=parsed.blocks)
    chunks = check(document, LetterCounter(), 80)
    assert len(chunks) > 3
    assert all(chunk.text.startswith("    value") for chunk in chunks[1:])
    assert {chunk.place.heading for chunk in chunks} == {"f"}


def test_places_are_those_of_the_text_not_of_the_white_space():
    chunks = check(plain("\n\nfirst line\nsecond\n\n\n\nthird " + "x " * 60), LetterCounter(), 14)
    assert chunks[0].place.lines == (3, 4)
    assert chunks[1].place.lines == (8, 8)


def test_the_header_is_counted_and_never_crowds_out_the_text():
    text = "# Title\n\n## Section\n\n" + "words and words. " * 60
    chunks = check(markdown(text), LetterCounter(), 60)
    assert chunks[-1].header == "Title > Section\n"
    long = "# " + "Title " * 200 + "\n\n" + "words and words. " * 60
    chunks = check(markdown(long), LetterCounter(), 60)
    assert chunks[-1].header == ""


def test_the_same_text_gives_the_same_chunks(words):
    text = "# A\n\n" + "Some words. " * 500
    assert split(markdown(text), words) == split(markdown(text), words)


def test_one_line_of_megabytes_is_split_in_linear_time(words):
    text = "a" * 1_000_000
    start = time.process_time()
    chunks = split(plain(text), words)
    assert "".join(chunk.text for chunk in chunks) == text
    assert all(chunk.n_tokens <= 512 for chunk in chunks)
    assert words.longest_text <= 16_000
    assert time.process_time() - start < 10


def test_counts_are_exact_where_few_tokens_hold_many_characters():
    class Runs:
        """A run of white space, of any length, is one token: as some tokenizers have it."""

        longest = 0

        def count(self, text: str) -> int:
            return len(self.ends(text))

        def ends(self, text: str) -> Sequence[int]:
            self.longest = max(self.longest, len(text))
            return [found.end() for found in re.finditer(r"\s+|\S{1,5}", text)]

    counter = Runs()
    check(plain(("word" + " " * 30_000) * 5), counter, 64)
    assert counter.longest <= 16_000


def test_long_runs_of_white_space_end(words):
    text = "a" + " " * 50_000 + "b" + "\n" * 50_000 + "c"
    check(plain(text), words, 64)


def test_a_cut_anywhere_in_random_bytes_of_text_keeps_every_character():
    source = random.Random(7)
    text = "".join(chr(source.choice([32, 10, 46, 97, 0x4E00, 0x1F600])) for _ in range(20_000))
    check(plain(text), LetterCounter(), 50)


def test_a_table_that_is_cut_is_headed_in_every_chunk() -> None:
    rows = [f"| North {n} | {n} |" for n in range(40)]
    text = "\n".join(["Sales of the year", "", "| Region | Sales |", *rows, "", "The end."])
    start = text.index("| Region")
    end = text.index("\n\nThe end")
    document = Document("/a.txt", text, "", tables=(Table(start, end, "| Region | Sales |"),))
    chunks = check(document, LetterCounter(), 60)
    inside = [chunk for chunk in chunks if start < chunk.start < end]
    assert len(inside) > 2 and chunks[0].table is None
    assert all(chunk.model_text.startswith("| Region | Sales |\n") for chunk in inside)
