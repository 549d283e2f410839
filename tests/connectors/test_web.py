"""The web as a source, over a real server on this machine."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from epicrag.connectors import wire
from epicrag.connectors.base import Limits
from epicrag.connectors.fetch import Fetcher, Manners, NoPage, Page, Same, normal
from epicrag.connectors.inflate import unpack
from epicrag.connectors.sitemap import parse_sitemap
from epicrag.connectors.web import Web, as_root
from epicrag.errors import OfflineError
from epicrag.types import Document, Origin, Unread

QUICK = Manners(delay=0, timeout=5)


@dataclass
class Reply:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0
    drip: str = ""
    """Whether the "head" or the "body" comes byte by byte."""


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
                if reply.drip:
                    return self.drip(reply)
                etag = reply.headers.get("ETag")
                same = etag is not None and self.headers.get("If-None-Match") == etag
                self.send_response(304 if same else reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                body = b"" if same else reply.body
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def drip(self, reply: Reply) -> None:
                head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nX-A: " + b"a" * 400
                self.wfile.write(head[:40])
                slow = head[40:] if reply.drip == "head" else reply.body
                if reply.drip == "body":
                    self.wfile.write(head[40:] + b"\r\n\r\n")
                try:
                    for n in range(200):
                        self.wfile.write(slow[n : n + 1])
                        time.sleep(0.02)
                except OSError:
                    pass

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


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a host that stands here, and is taken for one on the internet."""
    monkeypatch.setattr(wire, "_private", lambda roots: frozenset(["public.test"]))
    find = wire._addresses
    monkeypatch.setattr(
        wire, "_addresses", lambda host: find("127.0.0.1" if host == "public.test" else host)
    )
    return "http://public.test"


def get(url: str, manners: Manners = QUICK, trusted: tuple[str, ...] = (), **limits):
    fetcher = Fetcher(manners, Limits(**limits), trusted)
    try:
        return fetcher.get(url)
    finally:
        fetcher.close()


def test_from_the_web_nothing_leads_into_a_private_network(site):
    site.html("/a", "secret")
    found = get(site.url + "/a")
    assert isinstance(found, NoPage) and "private network" in found.reason
    assert found.kind == "skipped" and site.asked == []
    assert isinstance(get(site.url + "/a", trusted=(site.url + "/b",)), Page)
    assert isinstance(get(site.url + "/a", trusted=("http://10.1.2.3/",)), NoPage)


@pytest.mark.parametrize("moved", ["/robots.txt", "/a"])
def test_no_hop_of_any_request_leads_into_a_private_network(site, public, moved):
    inner = Site()
    try:
        inner.html("/secret", "secret")
        site.html("/a", "a")
        site.move(moved, inner.url + "/secret")
        found = get(f"{public}:{site.server.server_address[1]}/a")
        assert isinstance(found, NoPage) and "private network" in found.reason
        assert inner.asked == []
    finally:
        inner.close()


def test_a_name_that_turns_private_after_it_was_checked_is_not_connected_to(site, monkeypatch):
    site.html("/a", "secret")
    real, asked = socket.getaddrinfo, []

    def turning(host, *args, **kwargs):
        if host != "turning.test":
            return real(host, *args, **kwargs)
        asked.append(host)
        return real("93.184.216.34" if len(asked) == 1 else "127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", turning)
    url = site.url.replace("127.0.0.1", "turning.test") + "/a"
    found = get(url, trusted=(url,))
    assert isinstance(found, NoPage) and "private network" in found.reason
    assert len(asked) == 2 and site.asked == []


def test_a_name_is_connected_to_by_the_number_that_was_checked(monkeypatch):
    connected = []

    def connects(address, *args, **kwargs):
        connected.append(address[0])
        raise OSError("no way there")

    def finds(host, port, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port or 0))]

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", finds)
    monkeypatch.setattr(socket, "create_connection", connects)
    assert isinstance(get("http://turning.test/a"), NoPage)
    assert connected == ["93.184.216.34"]


def test_a_name_that_cannot_be_looked_up_is_not_asked(monkeypatch):
    def fails(host, *args, **kwargs):
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        found = get("http://nowhere.test/a")
        assert isinstance(found, NoPage) and "cannot be looked up" in found.reason
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    found = get("http://nowhere.test/a")
    assert isinstance(found, NoPage) and "cannot be looked up" in found.reason


def test_a_proxy_of_the_environment_is_used_but_not_to_a_private_network(site, monkeypatch):
    site.pages["http://93.184.216.34/robots.txt"] = Reply(status=404)
    site.html("http://93.184.216.34/a", "by proxy")
    monkeypatch.setenv("http_proxy", site.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = get("http://93.184.216.34/a")
    assert isinstance(found, Page) and b"by proxy" in found.data
    n_asked = len(site.asked)
    assert isinstance(get("http://10.0.0.1/a"), NoPage) and len(site.asked) == n_asked


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("64:ff9b::5db8:d822", True),
        ("64:ff9b::7f00:1", False),
        ("::ffff:127.0.0.1", False),
        ("::127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("169.254.169.254", False),
        ("100.64.1.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("fe80::1", False),
        ("::1", False),
    ],
)
def test_which_addresses_are_out_on_the_internet(address, public):
    assert wire.is_public(address) == public


PACKED = {
    "gzip": gzip.compress,
    "X-GZIP": gzip.compress,
    "deflate": zlib.compress,
    "identity, deflate": lambda data: zlib.compress(data)[2:-4],
    "identity": bytes,
}


@pytest.mark.parametrize("packing", PACKED)
def test_one_layer_of_packing_is_unpacked(site, packing):
    text = b"<p>words that were packed</p>" * 9_000
    site.pages["/a"] = Reply(PACKED[packing](text), 200, {"Content-Encoding": packing})
    found = get(site.url + "/a", trusted=(site.url,))
    assert isinstance(found, Page) and found.data == text
    assert site.seen[-1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("packing", ["gzip, gzip", "gzip,deflate", "br", "zstd", "gzip;q=1"])
def test_any_other_packing_is_refused(site, packing):
    body = gzip.compress(gzip.compress(b"a" * 1_000_000))
    site.pages["/a"] = Reply(body, 200, {"Content-Encoding": packing})
    found = get(site.url + "/a", trusted=(site.url,))
    assert isinstance(found, NoPage) and "packed as" in found.reason and found.kind == "failed"


def test_what_unpacks_to_too_much_is_never_unpacked(site):
    site.pages["/a"] = Reply(gzip.compress(bytes(64 << 20)), 200, {"Content-Encoding": "gzip"})
    tracemalloc.start()
    try:
        found = get(site.url + "/a", trusted=(site.url,), max_file_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        bomb = gzip.compress(b"<urlset>" + bytes(64 << 20))
        tracemalloc.reset_peak()
        parse_sitemap(bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert isinstance(found, NoPage) and "--max-file-mb" in found.reason


def test_packing_is_read_wherever_it_is_cut():
    text = b"one two three " * 20_000
    packed = gzip.compress(text[:99_999]) + gzip.compress(text[99_999:]) + b"\0\0"
    for size in (1, 777):
        pieces = [packed[n : n + size] for n in range(0, len(packed), size)]
        assert unpack(pieces, "gzip", 1 << 20) == (text, True)
    assert unpack([packed], "gzip", 10) == (text[:10], False)
    for damaged in (packed[:300], b"\x1f\x8bgarbage", b"words"):
        with pytest.raises(ValueError, match="packed"):
            unpack([damaged], "gzip", 1 << 20)


@pytest.mark.parametrize("delay", ["86400", "9" * 400, "9" * 5_000, "99999999999999"])
def test_a_host_that_asks_for_a_pause_longer_than_the_run_is_left(site, delay):
    site.pages["/robots.txt"] = Reply(f"User-agent: *\nCrawl-delay: {delay}\n".encode())
    site.html("/a", "a")
    known = (Origin(site.url + "/a", site.url + "/a", site.url + "/a"),)
    found, texts = look(site, "/a", known=known)
    assert texts == {} and site.asked == ["/robots.txt"]
    assert found.spare == {site.url + "/a"}
    assert reasons(site, found)["/a"][1]


def test_an_error_that_nobody_thought_of_costs_its_page(site, monkeypatch):
    site.html("/a", "a")
    site.html("/b", "b")
    request = Fetcher._request

    def fails(self, url, known):
        if url.endswith("/a"):
            raise RuntimeError("odd")
        return request(self, url, known)

    monkeypatch.setattr(Fetcher, "_request", fails)
    found, texts = look(site, "/a", "/b")
    assert list(texts) == ["/b"] and "odd" in reasons(site, found)["/a"][1]


@pytest.mark.parametrize("where", ["head", "body"])
@pytest.mark.parametrize("path", ["/robots.txt", "/a"])
def test_a_server_that_drips_is_left_in_time(site, path, where):
    site.html("/a", "a")
    site.pages[path] = Reply(b"#" * 1_000, drip=where)
    began = time.monotonic()
    found = get(site.url + "/a", trusted=(site.url,), max_file_seconds=0.3)
    assert isinstance(found, NoPage) and found.kind == "failed"
    assert "--max-file-seconds" in found.reason
    found = get(site.url + "/a", Manners(delay=0, max_seconds=0.3), (site.url,))
    assert isinstance(found, NoPage)
    assert found.kind == "left" or path == "/robots.txt"
    assert time.monotonic() - began < 4


def test_robots_that_are_long_are_obeyed_as_far_as_they_are_read(site):
    rules = b"User-agent: *\nDisallow: /private\n" + b"# padding\n" * 60_000 + b"Disallow: /a"
    site.pages["/robots.txt"] = Reply(rules)
    site.html("/a", "a")
    site.html("/private", "private")
    found, texts = look(site, "/a", "/private")
    assert list(texts) == ["/a"] and reasons(site, found)["/private"][0] == "skipped"


def test_roots_count_as_addresses_too(site):
    for name in "abc":
        site.html(f"/{name}", name)
    known = (Origin(site.url + "/c", site.url + "/c", site.url + "/c"),)
    manners = Manners(delay=0, max_addresses=2)
    found, texts = look(site, "/a", "/b", "/c", known=known, manners=manners)
    assert list(texts) == ["/a", "/b"] and "/c" not in site.asked
    assert found.spare == {site.url + "/c"}
    assert "max_addresses" in reasons(site, found)["/c"][1]


def test_what_two_roots_lead_to_is_fetched_once(site):
    site.html("/a", "a")
    site.html("/b", "b")
    site.move("/old", "/b")
    site.sitemap("/one.xml", "/a", "/old")
    site.sitemap("/two.xml", "/a", "/b")
    site.sitemap("/all.xml", "/one.xml", "/two.xml", kind="sitemapindex", item="sitemap")
    found, texts = look(site, "/a", "/one.xml", "/two.xml", "/all.xml")
    assert sorted(texts) == ["/a", "/b"]
    assert len(site.asked) == len(set(site.asked))
    roots = {path: {o.root for o in found.origins if o.path == site.url + path} for path in texts}
    assert {path: len(of) for path, of in roots.items()} == {"/a": 4, "/b": 3}


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


def test_a_host_that_cannot_be_reached_is_not_said_to_forbid_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        root = f"http://127.0.0.1:{taken.getsockname()[1]}/a"
        with closing(Web([root], (), Limits(), QUICK)) as web:
            (report,) = web.find().reports
    assert report.status == "failed"
    assert (
        report.reason.startswith("its host cannot be reached: ") and "robots" not in report.reason
    )


@pytest.mark.parametrize(
    ("error", "is_offline"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
    ],
)
def test_without_a_network_it_is_the_network_that_is_missing(monkeypatch, error, is_offline):
    def look_up(*_, **__):
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with closing(Web(["https://example.test/a"], (), Limits(), QUICK)) as web:
        if is_offline:
            with pytest.raises(OfflineError, match="there is no network") as offline:
                web.find()
            assert offline.value.exit_code == 10
        else:
            (report,) = web.find().reports
            assert "cannot be reached" in report.reason and "not known" in report.reason


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
