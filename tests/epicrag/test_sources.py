"""Every kind of source through a whole ingest: what comes in, what goes, and what is not computed again."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from epicrag.connectors.base import Limits
from epicrag.connectors.fetch import Manners
from epicrag.connectors.web import Web
from epicrag.errors import OfflineError, UsageError
from epicrag.ingest import Manner, MassDeleteError
from epicrag.sources import sources_of


def statuses(result) -> dict[str, str]:
    return {report.path.rpartition("/")[2]: report.status for report in result.files}


def write_zip(path: Path, files: dict[str, str]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    path.write_bytes(buffer.getvalue())


# --- archives ---


def test_members_of_an_archive_come_change_move_and_go(bench):
    archive = bench.docs / "a.zip"
    write_zip(archive, {"one.txt": "the first words", "sub/two.txt": "the second words"})
    assert statuses(bench.ingest()) == {"one.txt": "added", "two.txt": "added"}
    with bench.open() as pipeline:
        hit = pipeline.search("second words", k=1)[0]
        assert hit.chunk.document.endswith("/docs/a.zip!/sub/two.txt")
    assert set(statuses(bench.ingest()).values()) == {"unchanged"}
    bench.embedder.embedded.clear()
    bench.engine.compiled.clear()
    archive.rename(bench.docs / "b.zip")
    assert set(statuses(bench.ingest()).values()) == {"renamed"}
    write_zip(bench.docs / "b.zip", {"moved.txt": "the first words", "new.txt": "newer words"})
    assert statuses(bench.ingest()) == {
        "moved.txt": "renamed",
        "new.txt": "added",
        "two.txt": "deleted",
    }
    assert bench.embedder.embedded == ["newer words"]
    (bench.docs / "b.zip").unlink()
    bench.write("left.txt", "what is left")
    bench.ingest(yes=True)
    assert "newer" not in bench.found("newer words")


def test_an_archive_alone_is_answered_for(bench):
    write_zip(bench.docs / "a.zip", {"one.txt": "first words", "two.txt": "second words"})
    bench.ingest()
    write_zip(bench.docs / "a.zip", {"one.txt": "first words"})
    result = bench.ingest(bench.docs / "a.zip")
    assert statuses(result) == {"one.txt": "unchanged", "two.txt": "deleted"}
    (bench.docs / "a.zip").unlink()
    with pytest.raises(MassDeleteError, match="is not there"):
        bench.ingest(bench.docs / "a.zip")
    assert statuses(bench.ingest(bench.docs / "a.zip", yes=True)) == {"one.txt": "deleted"}


def test_a_damaged_archive_keeps_what_was_read_of_it(bench):
    write_zip(bench.docs / "a.zip", {"one.txt": "first words", "two.txt": "second words"})
    bench.ingest()
    (bench.docs / "a.zip").write_bytes(b"PK\x03\x04 and no more")
    assert statuses(bench.ingest()) == {"a.zip": "failed"}
    assert "second words" in bench.found("second words")


def texts(result) -> list[str]:
    return [f"{r.path}: {r.status} {r.reason}" for r in result.files if r.status == "skipped"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_has_the_path_of_another_is_said(bench):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("y.md", "nested words")
    with zipfile.ZipFile(bench.docs / "a.zip", "w") as archive:
        for name in ("a.md", "a.md", "./a.md", "x\\a.md", "x/a.md", "q.zip!/y.md"):
            archive.writestr(name, f"words {len(archive.namelist())}")
        archive.writestr("q.zip", inner.getvalue())
    bench.write("a.zip!/b.md", "of a folder")
    with zipfile.ZipFile(bench.docs / "b.zip", "w") as archive:
        archive.writestr("c.md", "of an archive")
    bench.write("b.zip!/c.md", "of a folder too")
    result = bench.ingest()
    assert result.counts == {"added": 5, "skipped": 5}
    assert sum(" has the path of " in text for text in texts(result)) == 5
    assert any("member 4 of" in text and "member 5 of" in text for text in texts(result))
    assert any("member 1 of" in text and "a file" in text for text in texts(result))
    assert "nested words" in bench.found("nested words")
    again = bench.ingest()
    assert again.counts == {"unchanged": 5, "skipped": 5}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_member_that_was_added_last_is_read(bench):
    with zipfile.ZipFile(bench.docs / "a.zip", "w") as archive:
        archive.writestr("a.md", "old words")
        archive.writestr("a.md", "new words")
    bench.ingest()
    assert "new words" in bench.found("words") and "old words" not in bench.found("words")


def test_an_extracted_archive_is_renamed(bench):
    write_zip(bench.docs / "a.zip", {"one.txt": "first words"})
    bench.ingest()
    (bench.docs / "a.zip").unlink()
    bench.write("a/one.txt", "first words")
    assert statuses(bench.ingest()) == {"one.txt": "renamed"}


# --- the web ---


@dataclass
class Pages:
    """Stands in place of a fetcher: a server's behaviour is tested where fetching is."""

    pages: dict[str, bytes | int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    offline: str | None = None

    def get(self, url: str, validators: Any = None) -> Any:
        from epicrag.connectors.fetch import NoPage, Page, Same

        self.asked.append(url)
        found = self.pages.get(url, 404)
        if isinstance(found, int):
            kind = "gone" if found == 404 else "failed"
            return NoPage(url, kind, f"the server says {found}")
        if validators and validators(url)[0] == str(hash(found)):
            return Same(url)
        return Page(url, found, "text/plain", None, str(hash(found)), "")

    def close(self) -> None:
        pass


ROOT = "https://docs.example/sitemap.xml"


class Crawl:
    def __init__(self, bench) -> None:
        self.bench, self.pages = bench, Pages()

    def put(self, **pages: str | int | None) -> None:
        for name, text in pages.items():
            url = f"https://docs.example/{name}"
            if text is None:
                self.pages.pages.pop(url, None)
            else:
                self.pages.pages[url] = text if isinstance(text, int) else text.encode()
        listed = "".join(f"<url><loc>{url}</loc></url>" for url in self.pages.pages if url != ROOT)
        self.pages.pages[ROOT] = f"<urlset>{listed}</urlset>".encode()

    def ingest(self, root: str = ROOT, **manner: Any) -> Any:
        with self.bench.open() as pipeline:
            web = Web([root], pipeline.catalog.origins.of([root]), Limits(), Manners())
            web._fetcher.close()
            web._fetcher = self.pages
            return pipeline.ingest_from(web, Manner(**manner))


@pytest.fixture
def crawl(bench) -> Crawl:
    return Crawl(bench)


def test_pages_of_a_sitemap_come_change_move_and_go(crawl):
    crawl.put(a="page one", b="page two", c="page three")
    assert statuses(crawl.ingest()) == {"a": "added", "b": "added", "c": "added"}
    assert set(statuses(crawl.ingest()).values()) == {"unchanged"}
    crawl.put(a="page four", b=None, d="page two", c=404)
    result = crawl.ingest()
    assert statuses(result) == {"a": "changed", "c": "deleted", "d": "renamed"}
    assert next(r for r in result.files if r.status == "deleted").reason == "the server says 404"
    assert statuses(crawl.ingest()) == {"a": "unchanged", "c": "skipped", "d": "unchanged"}


def test_a_page_that_fails_keeps_its_version(crawl):
    crawl.put(a="page one", b="page two")
    crawl.ingest()
    crawl.put(a=503)
    assert statuses(crawl.ingest()) == {"a": "failed", "b": "unchanged"}
    assert "page one" in crawl.bench.found("page one")
    crawl.put(a="page one")
    assert set(statuses(crawl.ingest()).values()) == {"unchanged"}


def test_a_sitemap_that_lost_most_of_its_pages_asks(crawl):
    crawl.put(a="page one", b="page two", c="page three")
    crawl.ingest()
    crawl.put(b=None, c=None)
    with pytest.raises(MassDeleteError):
        crawl.ingest()
    assert statuses(crawl.ingest(yes=True)) == {"a": "unchanged", "b": "deleted", "c": "deleted"}


def test_a_sitemap_answers_for_its_own_pages_only(crawl):
    crawl.put(a="page one", b="page two")
    crawl.ingest()
    crawl.bench.write("file.txt", "a file")
    assert statuses(crawl.bench.ingest()) == {"file.txt": "added"}
    crawl.put(b=None)
    assert statuses(crawl.ingest()) == {"a": "unchanged", "b": "deleted"}
    assert "a file" in crawl.bench.found("a file")


def test_an_unchanged_page_that_is_to_be_split_anew_is_fetched_for_it(crawl):
    crawl.put(a="word " * 100)
    crawl.ingest()
    crawl.bench.config = crawl.bench.open(chunk_tokens=40).config
    assert statuses(crawl.ingest()) == {"a": "changed"}
    assert statuses(crawl.ingest()) == {"a": "unchanged"}


def test_offline_an_address_is_refused(bench):
    with bench.open(offline=True) as pipeline, pytest.raises(OfflineError) as refusal:
        pipeline.ingest([ROOT])
    assert refusal.value.exit_code == 10
    assert "docs.example" in refusal.value.message and "offline" in refusal.value.message


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://x.example/a", "https://"])
def test_what_is_no_web_address_is_refused(bench, address):
    with bench.open() as pipeline, pytest.raises(UsageError, match="not an address"):
        sources_of([address], pipeline.config, pipeline.catalog)


# --- documents of LlamaIndex ---


def document(text: str, **more: Any) -> Any:
    from llama_index.core.schema import Document

    return Document(text=text, **more)


def test_documents_of_llamaindex_come_change_and_go(bench):
    def ingest(*documents: Any) -> Any:
        with bench.open() as pipeline:
            return pipeline.ingest_documents(documents, root="wiki", yes=True)

    first = document("the first words", id_="one", metadata={"title": "One", "year": 2020})
    paged = document("the second words", metadata={"file_name": "b.pdf", "page_label": "3"})
    assert statuses(ingest(first, paged)) == {"one": "added", "b.pdf#page=3": "added"}
    with bench.open() as pipeline:
        by_path = {d.path: d for d in pipeline.catalog.documents()}
        assert set(by_path) == {"reader:wiki/one", "reader:wiki/b.pdf#page=3"}
        assert by_path["reader:wiki/one"].meta == {"title": "One", "year": 2020}
        ((_, chunk),) = pipeline.catalog.chunks("reader:wiki/b.pdf#page=3")
        assert chunk.place.page == 3
    again = document(
        "the second words",
        metadata={"file_name": "b.pdf", "page_label": "3", "last_accessed_date": "2026-01-01"},
    )
    assert set(statuses(ingest(first, again)).values()) == {"unchanged"}
    bench.write("file.txt", "a file")
    bench.ingest()
    assert statuses(ingest(first)) == {"one": "unchanged", "b.pdf#page=3": "deleted"}
    assert "a file" in bench.found("a file")


def test_documents_of_one_name_and_names_below_names_are_told_apart(bench):
    def ingest(root: str, *documents: Any) -> Any:
        with bench.open() as pipeline:
            return pipeline.ingest_documents(documents, root=root, yes=True)

    one, two = document("one", id_="a"), document("two", id_="a")
    result = ingest("team", one, two, document("three", id_="a#2"))
    assert result.counts == {"added": 2, "skipped": 1}
    (lost,) = (report for report in result.files if report.status == "skipped")
    assert "has the id of another" in (lost.reason or "")
    ingest("team/x", document("below", id_="b"))
    ingest("team!", document("beside", id_="c"))
    assert ingest("team", one).counts == {"unchanged": 1, "deleted": 1}
    with bench.open() as pipeline:
        known = {row.path for row in pipeline.catalog.documents()}
    assert known == {"reader:team/a", "reader:team%2Fx/b", "reader:team%21/c"}


def test_a_document_whose_metadata_are_odd_is_read_all_the_same(bench):
    class Odd:
        doc_id = "odd"

        def __init__(self, metadata: Any) -> None:
            self.metadata = metadata

        def get_content(self) -> str:
            if self.metadata is None:
                raise LookupError("no content")
            return "odd words"

    circular: dict[str, Any] = {}
    circular["self"] = circular
    with bench.open() as pipeline:

        def ingest(*documents: Any) -> Any:
            return pipeline.ingest_documents(documents, root="odd", yes=True)

        assert ingest(Odd({"a": {1: 2, "b": 3}, 4: 5})).counts == {"added": 1}
        assert ingest(Odd({"a": {1: 2, "b": 3}, 4: 5})).counts == {"unchanged": 1}
        assert ingest(Odd(circular)).counts == {"failed": 1}
        assert ingest(Odd(None)).counts == {"failed": 1}
        assert [row.path for row in pipeline.catalog.documents()] == ["reader:odd/odd"]


@pytest.mark.parametrize("label", ["9" * 5000, str(10**30)])
def test_a_page_label_that_is_no_page_number_is_a_label(bench, label):
    with bench.open() as pipeline:
        odd = document("words", id_="a", metadata={"page_label": label})
        assert pipeline.ingest_documents([odd], root="x").counts == {"added": 1}


def test_standard_input_of_one_name_is_not_below_another(bench):
    with bench.open() as pipeline:
        pipeline.ingest_bytes("a.md/b.md", b"one", Manner())
        pipeline.ingest_bytes("a.md", b"two", Manner(yes=True))
        assert len(list(pipeline.catalog.documents())) == 2


def test_documents_without_a_name_are_told_apart(bench):
    with bench.open() as pipeline:
        result = pipeline.ingest_documents(
            [document("a b"), document("a b"), document("c")], root="x"
        )
        assert result.counts == {"added": 3}
        again = pipeline.ingest_documents(
            [document("a b"), document("a b"), document("c")], root="x"
        )
        assert again.counts == {"unchanged": 3}


def test_a_reader_is_loaded_by_name_with_its_arguments(bench):
    bench.write("a.txt", "some words of a file")
    arguments = {"input_dir": str(bench.docs)}
    reader = "llama_index.core:SimpleDirectoryReader"
    with bench.open() as pipeline:
        result = pipeline.ingest_reader(reader, arguments, "docs", Manner())
    assert result.counts == {"added": 1}
    assert "some words" in bench.found("some words")
    with bench.open() as pipeline:
        assert pipeline.ingest_reader(reader, arguments, "docs", Manner()).counts == {
            "unchanged": 1
        }


@pytest.mark.parametrize(
    ("reader", "arguments"),
    [
        ("no.such.module:Reader", {}),
        ("llama_index.core:NoSuch", {}),
        ("pathlib:Path", {}),
        ("nonsense", {}),
        ("llama_index.core:SimpleDirectoryReader", {"no_such": 1}),
        ("llama_index.core:SimpleDirectoryReader", {"input_dir": "/no/such/folder"}),
    ],
)
def test_a_reader_that_cannot_be_is_said(bench, reader, arguments):
    with bench.open() as pipeline, pytest.raises(UsageError, match="reader"):
        pipeline.ingest_reader(reader, arguments, "docs", Manner())


# --- standard input ---


def test_what_is_handed_over_is_a_document_by_its_name(bench):
    def ingest(data: bytes, name: str = "notes.md") -> Any:
        with bench.open() as pipeline:
            return pipeline.ingest_bytes(name, data, Manner())

    assert statuses(ingest(b"# Notes\n\nfirst words")) == {"stdin:notes.md": "added"}
    assert statuses(ingest(b"# Notes\n\nfirst words")) == {"stdin:notes.md": "unchanged"}
    assert statuses(ingest(b"# Notes\n\nother words")) == {"stdin:notes.md": "changed"}
    assert statuses(ingest(b"x", "x.exe")) == {"stdin:x.exe": "unsupported"}
    bench.write("file.txt", "a file")
    bench.ingest()
    assert "other words" in bench.found("other words")
