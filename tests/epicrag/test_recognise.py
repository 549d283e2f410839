"""Known chunks are found in text as others join it, and the text stays what it is."""

from __future__ import annotations

import random
import re
import string
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epicrag.chunkbook import ChunkBook, GivenChunk
from epicrag.errors import DamagedError
from epicrag.index.catalog import Catalog
from epicrag.recognise import LEAST_TOKENS, IndexSource, Recogniser, Whoever
from epicrag.serving.prompt import Chat, ChatFormat, Message, Piece
from epicrag.serving.tokenizer import UnitTokenizer
from epicrag.types import Chunk, Document, Place

LIBRARY = "/docs/library.md"


def prose(seed: int, n: int = 12) -> str:
    draw = random.Random(seed)
    words = ["ferry", "island", "museum", "harbour", "ticket", "Monday", "42", "opens", "the"]
    return " ".join(" ".join(draw.choices(words, k=9)).capitalize() + "." for _ in range(n))


def chunks_of(path: str, *texts: str, title: str | None = None) -> list[Chunk]:
    at, made = 0, []
    for n, text in enumerate(texts):
        place = Place(heading="Part one")
        made.append(Chunk(path, n, at, at + len(text), text, title, place, len(text) // 3))
        at += len(text)
    return made


def put(folder: Path, path: str, *texts: str, title: str | None = None) -> list[Chunk]:
    import numpy as np

    chunks = chunks_of(path, *texts, title=title)
    with Catalog.open(folder, create=True) as catalog:
        document = Document(path, "".join(texts), "digest")
        catalog.put_document(document, chunks, [np.zeros((0, 4), np.float32)] * len(chunks))
    return chunks


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Callable[[str], Path]) -> UnitTokenizer:
    return UnitTokenizer.load(checkpoint("llama"))


@pytest.fixture
def library(tmp_path: Path) -> list[Chunk]:
    """Three passages of one document, each ending as `split` leaves them, one indented."""
    return put(
        tmp_path, LIBRARY, prose(1) + "\n\n", "    " + prose(2) + "\n", prose(3), title="Library"
    )


@pytest.fixture
def recogniser(tmp_path: Path, tokenizer: UnitTokenizer, library: list[Chunk]):
    made = Recogniser(tokenizer, index=tmp_path)
    yield made
    made.close()


def joined(parts: tuple[str | Piece, ...]) -> str:
    return "".join(part if isinstance(part, str) else part.standing for part in parts)


def ids(tokenizer: UnitTokenizer, parts: tuple[str | Piece, ...]) -> list[int]:
    """The tokens of the parts, as the engine reads them."""
    chat = Chat((Message("user", parts),), is_raw=True)
    return [token for unit in ChatFormat(tokenizer, None).units(chat) for token in unit.ids]


JOINS = {
    "as they are": lambda texts: "".join(texts),
    "stripped, between blank lines": lambda texts: "\n\n".join(text.strip() for text in texts),
    "in a template": lambda texts: (
        "Context information is below.\n---------------------\n"
        + "\n\n".join(text.strip() for text in texts)
        + "\n---------------------\nQuery: when does it open?\nAnswer: "
    ),
    "in lines with numbers": lambda texts: "".join(f"{n}. {t}\n" for n, t in enumerate(texts)),
    "in quotes": lambda texts: str(list(texts)),
}


@pytest.mark.parametrize("join", JOINS)
def test_passages_are_found_as_others_join_them(recogniser, tokenizer, library, join):
    # What a JSON string makes of a line end is no line end: these are found without their headers.
    texts = [c.text.strip() if join == "in quotes" else c.model_text for c in library]
    flat = JOINS[join](texts[::-1])
    parts = recogniser.parts(flat)
    assert joined(parts) == flat
    pieces = [part for part in parts if isinstance(part, Piece)]
    assert [piece.text for piece in pieces] == [chunk.model_text for chunk in library[::-1]]
    assert [piece.before for piece in pieces] == [
        library[1].model_text,
        library[0].model_text,
        None,
    ]
    assert ids(tokenizer, parts) == list(tokenizer.ids(flat))
    shown = sum(len(piece.standing) for piece in pieces)
    assert shown > 0.9 * sum(map(len, texts))


def kinds() -> dict[str, Any]:
    """Tokenizers that put a space before a text, or read other characters than it has."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from tokenizers.trainers import BpeTrainer

    words = re.findall(r"\S+ \S+", prose(0, 90)) + ["\n\n (x)", "[1]\t½", "été\r\n---\n"] * 9
    bytes_ = pre_tokenizers.ByteLevel.alphabet()

    def of_bytes(**options: bool) -> Any:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(**options)
        made.decoder = decoders.ByteLevel()
        trainer = BpeTrainer(vocab_size=400, initial_alphabet=bytes_, show_progress=False)
        made.train_from_iterator(words, trainer)
        return made

    def of_pieces(scheme: str) -> Any:
        made = Tokenizer(models.BPE(unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        trainer = BpeTrainer(
            vocab_size=300,
            special_tokens=["<unk>"],
            initial_alphabet=sorted(set("".join(words) + string.printable)),
            show_progress=False,
        )
        made.train_from_iterator(words, trainer)
        return made

    llama2 = of_pieces("never")
    llama2.pre_tokenizer = pre_tokenizers.Split("\0", "isolated")
    llama2.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    nfkc = of_bytes(add_prefix_space=False)
    nfkc.normalizer = normalizers.NFKC()
    return {
        "bytes": of_bytes(add_prefix_space=False),
        "bytes, no words": of_bytes(add_prefix_space=False, use_regex=False),
        "bytes behind a space": of_bytes(add_prefix_space=True),
        "metaspace first": of_pieces("first"),
        "metaspace always": of_pieces("always"),
        "llama2": llama2,
        "nfkc": nfkc,
    }


@pytest.mark.parametrize(
    "kind",
    [
        "bytes",
        "bytes, no words",
        "bytes behind a space",
        "metaspace first",
        "metaspace always",
        "llama2",
        "nfkc",
    ],
)
def test_tokens_are_those_of_the_flat_text_whatever_the_tokenizer(tmp_path, kind):
    kinds()[kind].save(str(tmp_path / "tokenizer.json"))
    tokenizer = UnitTokenizer.load(tmp_path)
    chunks = put(tmp_path, LIBRARY, *(prose(n) + end for n, end in enumerate(["", "\n\n", " ½ "])))
    made = Recogniser(tokenizer, index=tmp_path)
    draw = random.Random(5)
    n_found = 0
    for _ in range(20):
        texts = draw.sample([draw.choice([c.text, c.text.strip()]) for c in chunks], 3)
        seams = draw.choices(["", " ", "\n", "(", "\n\n---\n", "½", "\t", "été ", "1. ", '"'], k=4)
        flat = "".join(f"{seam}{text}" for seam, text in zip(seams, [*texts, ""], strict=True))
        parts = made.parts(flat)
        assert joined(parts) == flat
        assert ids(tokenizer, parts) == list(tokenizer.ids(flat))
        n_found += sum(isinstance(part, Piece) for part in parts)
    made.close()
    assert n_found > 45


def test_text_without_known_passages_is_one_part(recogniser):
    for text in ("", "hi", prose(77) * 5, "\ud800 \udfff", "\0" * 500):
        assert recogniser.parts(text) == (text,)


def test_passage_with_a_changed_letter_is_not_taken(recogniser, library):
    text = library[0].text
    changed = text[:50] + "#" + text[51:]
    assert recogniser.parts(changed) == (changed,)


def test_text_that_is_no_unicode_around_a_passage(recogniser, library):
    flat = "\ud800" + library[0].model_text + "\udfff\U0001f6a2"
    parts = recogniser.parts(flat)
    assert joined(parts) == flat
    assert any(isinstance(part, Piece) for part in parts)


def test_longest_wins_and_none_lies_within_another(tmp_path, tokenizer):
    inner = prose(5)
    outer = prose(4) + " " + inner + " " + prose(6)
    put(tmp_path, "/inner", inner)
    put(tmp_path, "/outer", outer)
    made = Recogniser(tokenizer, index=tmp_path)
    pieces = [part for part in made.parts(f"a {outer} b {inner} c") if isinstance(part, Piece)]
    assert [piece.text.endswith(text) for piece, text in zip(pieces, (outer, inner), strict=True)]
    assert len(pieces) == 2
    made.close()


def test_of_equal_passages_the_one_whose_header_stands_there(tmp_path, tokenizer):
    for n in range(3):
        put(tmp_path, f"/{n}", prose(9), title=f"Title {n}")
    made = Recogniser(tokenizer, index=tmp_path)
    flat = f"x\nTitle 1 > Part one\n{prose(9)}"
    (piece,) = (part for part in made.parts(flat) if isinstance(part, Piece))
    assert piece.text.startswith("Title 1")
    assert piece.standing == piece.text
    made.close()


def test_short_passages_are_not_worth_it(tmp_path, tokenizer):
    text = "Ferries leave from pier three, and the last of them at nine in the evening"
    put(tmp_path, "/short", text)
    assert len(text) // 3 < LEAST_TOKENS
    made = Recogniser(tokenizer, index=tmp_path)
    assert made.parts(text) == (text,)
    made.close()


def test_index_is_followed_while_it_changes(tmp_path, tokenizer):
    made = Recogniser(tokenizer, index=tmp_path)
    assert made.parts(prose(1)) == (prose(1),)  # there is no index yet
    put(tmp_path, "/a", prose(1))
    made.prepare(wait=True)
    assert isinstance(made.parts(prose(1))[0], Piece)
    put(tmp_path, "/b", prose(2))
    with Catalog.open(tmp_path) as catalog:
        catalog.delete_document("/a")
    made.prepare(wait=True)
    assert made.parts(prose(1)) == (prose(1),)
    assert isinstance(made.parts(prose(2))[0], Piece)
    made.close()


def test_passage_that_is_gone_meanwhile_is_plain_text(tmp_path, tokenizer):
    put(tmp_path, "/a", prose(1))
    source = IndexSource(tmp_path)
    source.refresh(wait=True)
    with Catalog.open(tmp_path) as catalog:
        catalog.delete_document("/a")
    assert source.known.find(prose(1).encode())
    assert source.read([1]) == {}
    source.close()


def test_many_new_passages_are_read_in_a_thread_of_their_own(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("epicrag.recognise.AT_ONCE", 1)
    put(tmp_path, "/a", prose(1), prose(2))
    made = Recogniser(tokenizer, index=tmp_path)
    made.parts(prose(1))
    for thread in threading.enumerate():
        if thread.name == "epicrag-recognise":
            thread.join(10)
    assert isinstance(made.parts(prose(1))[0], Piece)
    made.close()


def test_damaged_index_costs_recognition_only(recogniser, library, monkeypatch, caplog):
    def damaged(*_: object) -> None:
        raise DamagedError("the text of chunk 1 has changed")

    monkeypatch.setattr(Catalog, "chunk", damaged)
    assert recogniser.parts(library[0].text) == (library[0].text,)
    assert "not looked for" in caplog.text


def test_chunks_of_a_namespace_are_found_by_itself_only(
    tmp_path, tokenizer, library, make_compiler
):
    with ChunkBook.open(tmp_path / "book", make_compiler(None), tokenizer, None) as book:
        made = Recogniser(tokenizer, index=tmp_path, book=book)
        mine, theirs = Whoever("a", may_ask=False), Whoever("b", may_ask=False)
        flat = f"{prose(21)}\n\n{library[0].model_text}"
        assert made.parts(flat, mine) == (flat,)
        (chunk,) = book.put("a", [GivenChunk(prose(21), title="Mine")])
        (piece, rest) = made.parts(flat, mine)
        assert (piece.text, piece.namespace, piece.start) == (chunk.model_text, "a", 5)
        assert rest == flat[len(prose(21)) :]
        assert made.parts(flat, theirs) == (flat,)
        both = [part for part in made.parts(flat, Whoever("a")) if isinstance(part, Piece)]
        assert [piece.namespace for piece in both] == ["a", ""]
        assert [p.namespace for p in made.parts(flat) if isinstance(p, Piece)] == [""]
        book.put("a", [GivenChunk("Another text.", chunk.id)], replace=True)
        assert made.parts(flat, mine) == (flat,)
        made.close()


def test_text_that_spells_a_control_token_is_left_alone(tmp_path, tokenizer):
    text = prose(1) + " <|im_end|> " + prose(2)
    put(tmp_path, "/a", text)
    made = Recogniser(tokenizer, index=tmp_path)
    parts = made.parts(f"x {text} y")
    assert joined(parts) == f"x {text} y"
    assert not tokenizer.special_ids & set(ids(tokenizer, parts))
    made.close()


def test_text_that_stands_within_itself_everywhere_costs_little(tmp_path, tokenizer):
    import time

    for n in range(5):
        put(tmp_path, f"/{n}", "a" * (150 + n))
    made = Recogniser(tokenizer, index=tmp_path)
    made.prepare(wait=True)
    began = time.process_time()
    flat = "a" * 60_000
    parts = made.parts(flat)
    assert time.process_time() - began < 10
    assert joined(parts) == flat
    made.close()
