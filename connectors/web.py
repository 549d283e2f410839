"""Pages on the web: single addresses, and all that a sitemap lists."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from epicrag.connectors.base import Limits
from epicrag.connectors.fetch import Fetcher, Manners, NoPage, Page, Same, normal
from epicrag.connectors.formats import extension_of, format_of
from epicrag.connectors.found import Found
from epicrag.connectors.sitemap import Sitemap, parse_sitemap
from epicrag.errors import OfflineError
from epicrag.types import Document, FileReport, FileStatus, Origin, Unread

if TYPE_CHECKING:
    from typing import IO

__all__ = ["Manners", "Web", "as_root"]

_SPOOL_BYTES = 16 << 20
_SAY_SECONDS = 5.0
_MAX_MAP_DEPTH = 3
_EXTENSIONS = {
    "text/html": "html", "application/xhtml+xml": "xhtml", "application/pdf": "pdf",
    "text/markdown": "md", "text/x-markdown": "md", "text/plain": "txt", "text/csv": "csv",
    "text/tab-separated-values": "tsv", "application/json": "json", "text/json": "json",
    "application/ld+json": "json", "application/x-ndjson": "jsonl", "application/jsonl": "jsonl",
    "application/xml": "xml", "text/xml": "xml", "application/rss+xml": "xml",
    "application/atom+xml": "xml", "text/x-rst": "rst", "application/rtf": "rtf", "text/rtf": "rtf",
    "application/epub+zip": "epub", "application/x-ipynb+json": "ipynb", "message/rfc822": "eml",
    "application/msword": "doc", "application/vnd.ms-excel": "xls",
    "application/vnd.ms-powerpoint": "ppt",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.presentation": "odp",
    "application/yaml": "yaml", "application/toml": "toml", "text/vtt": "vtt",
}  # fmt: skip
_VAGUE = frozenset(["", "text/plain", "application/octet-stream", "binary/octet-stream"])
"""Types that servers give what they do not know: the address may say more."""


def as_root(address: str) -> str | None:
    """Return an address as it is stored; None for what is none that can be fetched."""
    import httpx

    try:
        parts = httpx.URL(address.strip())
        root = normal(address) if parts.scheme in ("http", "https") and parts.host else None
    except (httpx.InvalidURL, ValueError):
        return None
    return root


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page that was fetched, or that is as it was when it was last fetched."""

    path: str
    size: int
    sha: str
    media: str
    charset: str | None
    web: Web
    at: tuple[int, int] | None
    """Where its bytes lie in the spool; None for a page that has not changed."""

    def digest(self) -> str:
        return self.sha

    def read(self) -> Document | Unread:
        from epicrag.connectors.read import read_bytes

        page = self.web.load(self)
        if isinstance(page, NoPage):
            return Unread("failed", page.reason)
        name = _name(page.url, page.media)
        if name is None:
            return Unread("unsupported", _no_reader(page.media))
        return read_bytes(
            self.path, page.data, limits=self.web.limits, name=name, charset=page.charset
        )

    def refusal(self) -> str | None:
        return None if _name(self.path, self.media) else _no_reader(self.media)


class _Stop(NamedTuple):
    """Why no more is fetched for now."""

    reason: str


class Web:
    """Addresses as a source. `known` are the origins of what these roots led to before."""

    is_remote = True

    def __init__(
        self,
        roots: Sequence[str],
        known: Iterable[Origin],
        limits: Limits,
        manners: Manners,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.limits = limits
        self._roots = tuple(dict.fromkeys(map(normal, roots)))
        self._known = tuple(known)
        self._manners = manners
        self._say = say or (lambda text: None)
        self._fetcher = Fetcher(manners, limits, self._roots)
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - see close
        self._versions = {o.path: o for o in self._known if o.etag or o.modified}
        self._entries: dict[str, WebPage] = {}
        self._origins: dict[tuple[str, str], Origin] = {}
        self._reports: dict[str, FileReport] = {}
        self._spare: set[str] = set()
        self._outcomes: dict[str, Page | Same | NoPage] = {}
        """What was asked for, and what came of it; the bytes of a page are in the spool."""
        self._places: dict[str, tuple[int, int]] = {}
        self._n_asked = 0
        self._began = self._said = time.monotonic()

    def close(self) -> None:
        self._spool.close()
        self._fetcher.close()

    def find(self) -> Found:
        """Fetch what the roots lead to. OfflineError: there is no network to fetch anything by."""
        for root in self._roots:
            if root not in self._outcomes and (stop := self._over()) is not None:
                self._leave_root(root, stop)
            else:
                self._visit(root)
        if (why := self._fetcher.offline) is not None:
            raise OfflineError(
                f"{self._roots[0]} has to be fetched, and there is no network: {why}",
                "connect this machine, or give files; what was read earlier is kept",
            )
        roots = set(self._roots)
        elsewhere = {origin.path for origin in self._known if origin.root not in roots}
        led = {origin.path for origin in self._known if origin.root in roots}
        sites = dict.fromkeys(map(_site, [*self._roots, *self._entries]))
        return Found(
            entries=tuple(self._entries[path] for path in sorted(self._entries)),
            reports=tuple(self._reports[path] for path in sorted(self._reports)),
            held=frozenset(led - elsewhere),
            spare=frozenset(self._spare),
            origins=tuple(self._origins.values()),
            web_roots=self._roots,
            areas=tuple(sites),
        )

    def load(self, page: WebPage) -> Page | NoPage:
        """Return a page's bytes: from the spool, or fetched again where only their digest is known."""
        if page.at is None:
            found = self._fetcher.get(page.path)
            return NoPage(page.path, "failed", "no answer") if isinstance(found, Same) else found
        return Page(page.path, self._spooled(page.at), page.media, page.charset, "", "")

    def _visit(self, root: str) -> None:
        """Fetch a root, and the pages it lists if it is a sitemap."""
        self._say(f"fetching {root}")
        found = self._fetch(root)
        if isinstance(found, NoPage):
            self._miss_root(root, found)
        elif isinstance(found, Page) and (sitemap := self._sitemap(found)) is not None:
            pages = list(dict.fromkeys(self._listed(root, sitemap, 0, {root, found.url})))
            left, stop = [], None
            for n, address in enumerate(pages):
                if address not in self._outcomes and (stop := stop or self._over()):
                    left.append(address)
                    continue
                self._tell(root, n, len(pages))
                self._page(root, address)
            if stop is not None:
                self._leave(root, left, stop)
        else:
            self._take(root, root, found)

    def _listed(self, root: str, sitemap: Sitemap, depth: int, seen: set[str]) -> Iterable[str]:
        """Yield the addresses in a sitemap and in those it points to."""
        for place in sitemap.pages:
            if (address := as_root(place)) is not None:
                yield address
            else:
                self._reports[place] = FileReport(place, "skipped", "it is no web address")
        for place in sitemap.maps:
            address = as_root(place)
            if address is None or address in seen:
                continue
            seen.add(address)
            stop = self._over()
            found = None if stop else self._fetch(address)
            inner = self._sitemap(found) if isinstance(found, Page) else None
            if inner is None or depth >= _MAX_MAP_DEPTH:
                self._miss_map(root, address, stop, found)
            else:
                yield from self._listed(root, inner, depth + 1, seen)

    def _sitemap(self, page: Page) -> Sitemap | None:
        return parse_sitemap(page.data, self.limits.max_file_bytes)

    def _page(self, root: str, address: str) -> None:
        found = self._fetch(address)
        if isinstance(found, NoPage):
            self._miss(root, address, found)
        else:
            self._take(root, address, found)

    def _fetch(self, address: str) -> Page | Same | NoPage:
        """Fetch an address once in a run, whichever root leads to it."""
        found = self._outcomes.get(address)
        if isinstance(found, Page):
            return found._replace(data=self._spooled(self._places[found.url]))
        if found is not None:
            return found
        self._n_asked += 1
        found = self._fetcher.get(address, self._validators)
        self._outcomes[address] = found
        if isinstance(found, Page):
            start = self._spool.seek(0, os.SEEK_END)
            self._spool.write(found.data)
            self._places[found.url] = (start, len(found.data))
            self._outcomes[address] = self._outcomes[found.url] = found._replace(data=b"")
        return found

    def _spooled(self, at: tuple[int, int]) -> bytes:
        self._spool.seek(at[0])
        return self._spool.read(at[1])

    def _validators(self, url: str) -> tuple[str, str]:
        version = self._versions.get(url)
        return (version.etag, version.modified) if version else ("", "")

    def _take(self, root: str, asked: str, found: Page | Same) -> None:
        """Note a page under its final address, and how it was come by."""
        path = found.url
        if isinstance(found, Same):
            origin = self._versions[path]._replace(root=root, asked=asked)
            self._entries.setdefault(path, WebPage(path, 0, origin.digest, "", None, self, None))
        else:
            origin = self._store(found, root, asked)
        self._origins[path, root] = origin

    def _store(self, page: Page, root: str, asked: str) -> Origin:
        sha = hashlib.sha256(page.data).hexdigest()
        at = self._places[page.url]
        self._entries[page.url] = WebPage(
            page.url, len(page.data), sha, page.media, page.charset, self, at
        )
        return Origin(page.url, root, asked, sha, page.etag, page.modified)

    # --- what could not be had ---

    def _miss(self, root: str, address: str, missed: NoPage) -> None:
        """A page that is gone or forbidden is left out; any other keeps what was read earlier."""
        moved = "" if missed.url == address else f" ({missed.url})"
        status: FileStatus = "failed" if missed.kind == "failed" else "skipped"
        for path in self._paths_of(root, address):
            self._reports[path] = FileReport(path, status, missed.reason + moved)
        if missed.kind in ("failed", "left"):
            self._spare.update(self._paths_of(root, address))

    def _paths_of(self, root: str, address: str) -> set[str]:
        """The documents that an address led to before, and the address itself where there are none."""
        known = {o.path for o in self._known if o.asked == address and o.root == root}
        return known or {address}

    def _miss_root(self, root: str, missed: NoPage) -> None:
        """Without its sitemap nothing is known of its pages: they stay as they are."""
        pages = {origin.path for origin in self._known if origin.root == root}
        asked = {origin.asked for origin in self._known if origin.root == root}
        if missed.kind in ("gone", "skipped") and asked == {root}:
            self._miss(root, root, missed)
            return
        kept = f" (its {len(pages)} pages are kept)" if pages else ""
        status: FileStatus = "skipped" if missed.kind in ("skipped", "left") else "failed"
        self._reports[root] = FileReport(root, status, missed.reason + kept)
        self._spare |= pages

    def _miss_map(
        self, root: str, address: str, stop: _Stop | None, found: Page | Same | NoPage | None
    ) -> None:
        reason = "not a sitemap"
        if stop is not None:
            reason = stop.reason
        elif isinstance(found, NoPage):
            reason = found.reason
        self._reports[address] = FileReport(address, "failed", f"{reason} (its pages are kept)")
        self._spare |= {origin.path for origin in self._known if origin.root == root}

    def _over(self) -> _Stop | None:
        if self._n_asked >= self._manners.max_addresses:
            limit = f"{self._manners.max_addresses:,} addresses"
            return _Stop(f"the limit of {limit} is reached; raise it with max_addresses")
        if time.monotonic() - self._began > self._manners.max_seconds:
            limit = f"{self._manners.max_seconds:g} seconds"
            return _Stop(f"the limit of {limit} for the web is reached; raise max_web_seconds")
        return None

    def _leave_root(self, root: str, stop: _Stop) -> None:
        self._reports[root] = FileReport(root, "skipped", f"it is not fetched: {stop.reason}")
        self._spare |= {origin.path for origin in self._known if origin.root == root}

    def _leave(self, root: str, left: Sequence[str], stop: _Stop) -> None:
        reason = f"{len(left):,} of its pages are not fetched: {stop.reason}"
        self._reports[root] = FileReport(root, "skipped", reason)
        unvisited = set(left)
        self._spare |= {o.path for o in self._known if o.root == root and o.asked in unvisited}

    def _tell(self, root: str, done: int, total: int) -> None:
        if time.monotonic() - self._said > _SAY_SECONDS:
            self._said = time.monotonic()
            self._say(f"fetched {done:,} of {total:,} pages of {root}")


def _name(url: str, media: str) -> str | None:
    """Return a file name of the format that a page is in; None when no reader takes it."""
    extension = extension_of(unquote(urlsplit(url).path))
    if media in _VAGUE and extension and format_of(f"page.{extension}"):
        return f"page.{extension}"
    extension = _EXTENSIONS.get(media, "" if media else extension)
    return f"page.{extension}" if extension and format_of(f"page.{extension}") else None


def _no_reader(media: str) -> str:
    return f"{media or 'a page without a type'} is not supported"


def _site(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
