"""The web as a source, over a real server on this machine."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from epicrag.connectors.base import Limits
from epicrag.connectors.fetch import Fetcher, Manners, NoPage, Page, Same, normal
from epicrag.connectors.sitemap import parse_sitemap
from epicrag.connectors.web import Web, as_root
from epicrag.types import Document, Origin, Unread

QUICK = Manners(delay=0, timeout=5)


@dataclass
class Reply:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0


class Site:
    """A server whose pages are set by the test, and a list of what was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, Reply] = {"/robots.txt": Reply(status=404)}
        self.asked: list[str] = []
        self.times: list[float] = []
        self.seen: list[dict[str, str]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                site.times.append(time.monotonic())
                site.seen.append(dict(self.headers))
                reply = site.pages.get(self.path, Reply(b"no such page", 404))
                time.sleep(reply.wait)
                etag = reply.headers.get("ETag")
                same = etag is not None and self.headers.get("If-None-Match") == etag
                self.send_response(304 if same else reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                body = b"" if same else reply.body
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def html(self, path: str, text: str, **headers: str) -> None:
        body = f"<html><title>T</title><p>{text}</p></html>".encode()
        self.pages[path] = Reply(body, 200, {"Content-Type": "text/html; charset=utf-8", **headers})

    def sitemap(self, path: str, *places: str, kind: str = "urlset", item: str = "url") -> None:
        listed = "".join(
            f"<{item}><loc>{p if '://' in p else self.url + p}</loc></{item}>" for p in places
        )
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        text = f'<?xml version="1.0"?>\n<{kind} xmlns="{space}">{listed}</{kind}>'
        self.pages[path] = Reply(text.encode(), 200, {"Content-Type": "application/xml"})

    def move(self, path: str, to: str) -> None:
        self.pages[path] = Reply(b"", 301, {"Location": to})

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    site = Site()
    yield site
    site.close()


def look(site: Site, *paths: str, known: tuple[Origin, ...] = (), manners=QUICK, **limits):
    web = Web([site.url + path for path in paths], known, Limits(**limits), manners)
    try:
        found = web.find()
        texts = {}
        for entry in found.entries:
            document = entry.read()
            assert isinstance(document, Unread) or document.digest == entry.digest()
            texts[entry.path.removeprefix(site.url)] = document
        return found, texts
    finally:
        web.close()


def reasons(site: Site, found) -> dict[str, tuple[str, str]]:
    return {r.path.removeprefix(site.url): (r.status, r.reason or "") for r in found.reports}


def test_a_page_is_a_document_at_its_address(site):
    site.html("/a", "Fee is 5 caf\u00e9")
    found, texts = look(site, "/a#part")
    document = texts["/a"]
    assert isinstance(document, Document)
    assert (document.path, document.media) == (site.url + "/a", "text/html")
    assert "caf\u00e9" in document.text
    assert found.web_roots == (site.url + "/a",)
    assert "epicrag/" in site.seen[-1]["User-Agent"] and "Cookie" not in site.seen[-1]


def test_a_sitemap_stands_for_its_pages_and_an_index_for_its_sitemaps(site):
    for name in "abc":
        site.html(f"/{name}", f"page {name}")
    site.sitemap("/two.xml", "/c", "/a")
    site.pages["/two.xml.gz"] = Reply(gzip.compress(site.pages["/two.xml"].body))
    site.sitemap("/one.xml", "/a", "/b")
    site.sitemap("/sitemap.xml", "/one.xml", "/two.xml.gz", kind="sitemapindex", item="sitemap")
    found, texts = look(site, "/sitemap.xml")
    assert sorted(texts) == ["/a", "/b", "/c"]
    assert site.asked.count("/a") == 1
    assert {origin.root for origin in found.origins} == {site.url + "/sitemap.xml"}


def test_robots_are_obeyed(site):
    site.pages["/robots.txt"] = Reply(b"User-agent: epicrag\nDisallow: /private\n")
    site.html("/open", "open")
    site.html("/private/x", "private")
    site.sitemap("/sitemap.xml", "/open", "/private/x")
    found, texts = look(site, "/sitemap.xml")
    assert list(texts) == ["/open"]
    assert "/private/x" not in site.asked
    assert reasons(site, found)["/private/x"] == ("skipped", "its robots.txt asks not to read it")


@pytest.mark.parametrize("status", [500, 503])
def test_robots_that_fail_forbid_all_and_lose_nothing(site, status):
    site.pages["/robots.txt"] = Reply(status=status)
    site.html("/a", "text")
    known = (Origin(site.url + "/a", site.url + "/a", site.url + "/a"),)
    found, texts = look(site, "/a", known=known)
    assert texts == {} and "/a" not in site.asked
    assert reasons(site, found)["/a"][0] == "failed"
    assert found.spare == {site.url + "/a"}


def test_a_host_is_asked_with_a_pause_and_as_slowly_as_its_robots_say(site):
    site.pages["/robots.txt"] = Reply(b"User-agent: *\nCrawl-delay: 1\n")
    site.html("/a", "a")
    site.html("/b", "b")
    look(site, "/a", "/b")
    assert site.asked == ["/robots.txt", "/a", "/b"]
    assert site.times[2] - site.times[1] >= 0.9


def test_an_unchanged_page_costs_no_more_than_the_question(site):
    site.html("/a", "text", ETag='"1"')
    found, _ = look(site, "/a")
    (origin,) = found.origins
    again, _ = look(site, "/a", known=(origin,))
    assert again.origins == (origin,)
    # Reading it all the same, for another chunk size, fetches it again.
    assert site.asked.count("/a") == 3
    assert [seen.get("If-None-Match") for seen in site.seen[1:]] == [None, None, '"1"', None]


def test_a_page_that_is_gone_is_missed_and_one_that_fails_is_kept(site):
    root = site.url + "/sitemap.xml"
    site.html("/here", "here")
    site.pages["/broken"] = Reply(status=502)
    site.pages["/slow"] = Reply(b"slow", wait=3)
    site.pages["/gone"] = Reply(status=410)
    names = ("/here", "/broken", "/slow", "/gone", "/unlisted")
    site.sitemap("/sitemap.xml", *names[:-1])
    known = tuple(Origin(site.url + name, root, site.url + name) for name in names)
    found, texts = look(site, "/sitemap.xml", known=known, manners=Manners(delay=0, timeout=0.5))
    assert list(texts) == ["/here"]
    assert found.held == {site.url + name for name in names}
    assert found.spare == {site.url + "/broken", site.url + "/slow"}
    told = reasons(site, found)
    assert {name: told[name][0] for name in told} == {
        "/broken": "failed",
        "/slow": "failed",
        "/gone": "skipped",
    }
    assert "502" in told["/broken"][1] and "410" in told["/gone"][1]


@pytest.mark.parametrize("status", [404, 500])
def test_a_sitemap_that_is_lost_loses_no_page(site, status):
    root = site.url + "/sitemap.xml"
    site.pages["/sitemap.xml"] = Reply(status=status)
    known = (Origin(site.url + "/a", root, site.url + "/a"),)
    found, _ = look(site, "/sitemap.xml", known=known)
    assert found.spare == {site.url + "/a"}
    assert reasons(site, found)["/sitemap.xml"][0] == "failed"


def test_a_single_page_that_is_gone_is_deleted(site):
    url = site.url + "/a"
    found, _ = look(site, "/a", known=(Origin(url, url, url),))
    assert found.held == {url} and not found.spare
    assert look(site, "/b")[0].reports[0].status == "failed"  # nobody has heard of it


def test_a_page_of_two_roots_is_kept_while_one_leads_to_it(site):
    site.sitemap("/one.xml")
    page, one, two = (site.url + path for path in ("/a", "/one.xml", "/two.xml"))
    known = (Origin(page, one, page), Origin(page, two, page))
    assert look(site, "/one.xml", known=known)[0].held == frozenset()


def test_a_moved_page_is_known_by_where_it_is(site):
    site.html("/new", "moved text")
    site.move("/old", "/new#x")
    found, texts = look(site, "/old")
    assert list(texts) == ["/new"]
    (origin,) = found.origins
    assert (origin.path, origin.asked) == (site.url + "/new", site.url + "/old")
    site.move("/ring", "/ring")
    site.move("/file", "file:///etc/passwd")
    found, texts = look(site, "/ring", "/file")
    assert texts == {}
    assert {status for status, _ in reasons(site, found).values()} == {"failed", "skipped"}


def test_another_host_has_its_own_rules(site):
    other = Site()
    try:
        other.pages["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /\n")
        other.html("/x", "other")
        site.move("/away", other.url + "/x")
        _, texts = look(site, "/away")
        assert texts == {} and other.asked == ["/robots.txt"]
    finally:
        other.close()


def test_from_the_web_nothing_leads_into_a_private_network(site, monkeypatch):
    monkeypatch.setattr("epicrag.connectors.fetch._is_private", lambda host: host == "127.0.0.1")
    fetcher = Fetcher(QUICK, Limits(), ("http://public.example/",))
    found = fetcher.get(site.url + "/a")
    fetcher.close()
    assert isinstance(found, NoPage) and "private network" in found.reason
    assert site.asked == []


@pytest.mark.parametrize(
    ("path", "media", "body", "expected"),
    [
        ("/x", "text/html", b"<p>words</p>", "text/html"),
        ("/x.md", "text/plain", b"# Title", "text/markdown"),
        ("/x.md", "", b"# Title", "text/markdown"),
        ("/x.php", "text/html", b"<p>words</p>", "text/html"),
        ("/x", "text/plain", b"words", "text/plain"),
        ("/x.py", "application/octet-stream", b"x = 1", "text/x-python"),
        ("/x", "application/xhtml+xml", b"<p>words</p>", "text/html"),
    ],
)
def test_the_type_that_a_server_gives_decides_the_reader(site, path, media, body, expected):
    site.pages[path] = Reply(body, 200, {"Content-Type": media} if media else {})
    assert look(site, path)[1][path].media == expected


def test_what_no_reader_takes_is_unsupported(site):
    site.pages["/x"] = Reply(b"\x89PNG", 200, {"Content-Type": "image/png"})
    unread = look(site, "/x")[1]["/x"]
    assert isinstance(unread, Unread) and unread.status == "unsupported"
    assert "image/png" in unread.reason


def test_the_charset_that_a_server_gives_is_believed(site):
    body = "<p>цена 5</p>".encode("koi8-r")
    site.pages["/x"] = Reply(body, 200, {"Content-Type": "text/html; charset=koi8-r"})
    assert "цена" in look(site, "/x")[1]["/x"].text


def test_a_page_over_the_limit_is_skipped(site):
    site.html("/big", "word " * 500_000)
    found, texts = look(site, "/big", max_file_bytes=1 << 20)
    assert texts == {} and "--max-file-mb" in reasons(site, found)["/big"][1]


def test_no_more_addresses_are_asked_than_allowed_and_the_rest_is_kept(site):
    root = site.url + "/sitemap.xml"
    for n in range(6):
        site.html(f"/{n}", "text")
    site.sitemap("/sitemap.xml", *(f"/{n}" for n in range(6)))
    known = tuple(Origin(f"{site.url}/{n}", root, f"{site.url}/{n}") for n in range(6))
    found, texts = look(
        site, "/sitemap.xml", known=known, manners=Manners(delay=0, max_addresses=4)
    )
    assert len(texts) == 3
    assert found.spare == {f"{site.url}/{n}" for n in (3, 4, 5)}
    assert "max_addresses" in reasons(site, found)["/sitemap.xml"][1]
    found, texts = look(site, "/sitemap.xml", known=known, manners=Manners(delay=0, max_seconds=0))
    assert texts == {} and "max_web_seconds" in reasons(site, found)["/sitemap.xml"][1]


def test_a_server_that_is_not_there_is_said():
    fetcher = Fetcher(QUICK, Limits(), ("http://127.0.0.1:9/",))
    found = fetcher.get("http://127.0.0.1:9/x")
    fetcher.close()
    assert isinstance(found, NoPage) and found.kind == "failed"


def test_cookies_are_neither_kept_nor_sent(site):
    site.html("/a", "a", **{"Set-Cookie": "id=1; Path=/"})
    site.html("/b", "b")
    fetcher = Fetcher(QUICK, Limits(), (site.url,))
    assert isinstance(fetcher.get(site.url + "/a"), Page)
    assert isinstance(fetcher.get(site.url + "/b"), Page)
    assert not isinstance(fetcher.get(site.url + "/b"), Same)
    fetcher.close()
    assert all("Cookie" not in seen for seen in site.seen)


def test_a_hostile_sitemap_is_read_as_far_as_it_goes():
    assert parse_sitemap(b"<html>no</html>", 1 << 20) is None
    assert parse_sitemap(b"\x1f\x8bgarbage", 1 << 20) is None
    bomb = (
        b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><urlset><url><loc>&a;</loc></url>'
    )
    found = parse_sitemap(bomb, 1 << 20)
    assert found is not None and found.pages == ()
    big = gzip.compress(b"<urlset>" + b" " * (8 << 20))
    assert parse_sitemap(big, 1 << 20) is not None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("HTTP://Example.ORG:80/a#b", "http://example.org/a"),
        ("https://example.org", "https://example.org/"),
        ("https://example.org/?q=1", "https://example.org/?q=1"),
        ("file:///etc/passwd", None),
        ("ftp://example.org/x", None),
        ("https://", None),
    ],
)
def test_addresses_are_compared_in_one_form(given, expected):
    assert as_root(given) == expected
    assert expected is None or normal(expected) == expected
