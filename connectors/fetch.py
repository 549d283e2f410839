"""One address after another, fetched politely: robots.txt, a pause between requests, and limits."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit, urlunsplit
from urllib.robotparser import RobotFileParser

from epicrag.connectors.base import Limits, file_too_big, took_too_long

if TYPE_CHECKING:
    import httpx

AGENT = "epicrag"
"""What robots.txt may name us by."""
_ROBOTS_BYTES = 512 * 1024
_MAX_REDIRECTS = 5
_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class Manners:
    """How a server is treated, and how much is asked of the web in one run."""

    delay: float = 1.0
    """Seconds between two requests to one host; robots.txt may ask for more."""
    timeout: float = 20.0
    """Seconds without an answer."""
    max_addresses: int = 5_000
    max_seconds: float = 3_600.0


class Page(NamedTuple):
    """What an address holds, and where it was found in the end."""

    url: str
    data: bytes
    media: str
    """The type its server gives, in lower case; "" when it gives none."""
    charset: str | None
    etag: str
    modified: str


class Same(NamedTuple):
    """The page is the version that is known."""

    url: str


class NoPage(NamedTuple):
    """Why there is nothing: it is gone, must not be read ("skipped"), or could not be had ("failed")."""

    url: str
    kind: Literal["gone", "skipped", "failed"]
    reason: str


Validators = Callable[[str], tuple[str, str]]
"""Of an address: the etag and the time of the version that is known, "" where there is none."""


@dataclass(slots=True)
class _Host:
    """One host: what it allows, and when it was asked last."""

    robots: RobotFileParser | str
    """Its rules, or why they could not be had."""
    delay: float
    asked: float = field(default=-1e9)


class Fetcher:
    """Fetches addresses one by one. Addresses are normal: see `normal`.

    `trusted` are addresses that the user gave: if one is on a private network, all may be; else nothing
    that a page or sitemap leads to is fetched from one.
    """

    def __init__(self, manners: Manners, limits: Limits, trusted: tuple[str, ...] = ()) -> None:
        import httpx

        from epicrag import __version__

        self._manners = manners
        self._limits = limits
        self._hosts: dict[str, _Host] = {}
        self._may_be_private = any(_is_private(httpx.URL(url).host) for url in trusted)
        self._client = httpx.Client(
            headers={"User-Agent": f"{AGENT}/{__version__}"},
            timeout=manners.timeout,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    def close(self) -> None:
        self._client.close()

    def get(self, url: str, validators: Validators = lambda url: ("", "")) -> Page | Same | NoPage:
        """Fetch an address, and where it has moved to. Whatever goes wrong is a `NoPage`."""
        import httpx

        at = url
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                if (refusal := self._refusal(at)) is not None:
                    return refusal
                found = self._request(at, validators(at))
                if not isinstance(found, str):
                    return found
                at = found
        except httpx.TimeoutException:
            return NoPage(at, "failed", f"no answer within {self._manners.timeout:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            return NoPage(at, "failed", f"cannot be fetched: {error or type(error).__name__}")
        return NoPage(at, "failed", f"it moves more than {_MAX_REDIRECTS} times: {url}")

    def _refusal(self, url: str) -> NoPage | None:
        """Say why an address must not be asked for."""
        import httpx

        parts = httpx.URL(url)
        if parts.scheme not in _SCHEMES or not parts.host:
            return NoPage(url, "skipped", "it leads to what is no web address")
        if not self._may_be_private and _is_private(parts.host):
            return NoPage(url, "skipped", "it leads into a private network: give it by name")
        robots = self._host(parts).robots
        if isinstance(robots, str):
            return NoPage(url, "failed", f"robots.txt cannot be read, which forbids all: {robots}")
        if not robots.can_fetch(AGENT, url):
            return NoPage(url, "skipped", "its robots.txt asks not to read it")
        return None

    def _request(self, url: str, known: tuple[str, str]) -> Page | Same | NoPage | str:
        """Ask once; return the address it has moved to as text."""
        names = ("If-None-Match", "If-Modified-Since")
        headers = {name: value for name, value in zip(names, known, strict=True) if value}
        self._pause(url)
        with self._client.stream("GET", url, headers=headers) as response:
            status = response.status_code
            if status == HTTPStatus.NOT_MODIFIED and headers:
                return Same(url)
            if response.has_redirect_location:
                return normal(str(response.url.join(response.headers["Location"])))
            if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                return NoPage(url, "gone", _words(status))
            if not response.is_success:
                return NoPage(url, "failed", _words(status))
            data = self._body(response, self._limits.max_file_bytes)
            if isinstance(data, str):
                return NoPage(url, "skipped", data)
            return _page(url, data, response)

    def _body(self, response: httpx.Response, most: int) -> bytes | str:
        """Read a body within the limits; else return which it is over."""
        began, pieces, size = time.monotonic(), [], 0
        for piece in response.iter_bytes(65_536):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                return file_too_big(size, most)
            if time.monotonic() - began > self._limits.max_file_seconds:
                return took_too_long(self._limits.max_file_seconds).reason
        return b"".join(pieces)

    def _pause(self, url: str) -> None:
        """Wait until the host may be asked again."""
        import httpx

        host = self._host(httpx.URL(url))
        left = host.asked + host.delay - time.monotonic()
        if left > 0:
            time.sleep(left)
        host.asked = time.monotonic()

    def _host(self, parts: httpx.URL) -> _Host:
        site = f"{parts.scheme}://{parts.netloc.decode('ascii')}"
        if site not in self._hosts:
            robots = self._robots(site)
            asked = None if isinstance(robots, str) else robots.crawl_delay(AGENT)
            delay = max(self._manners.delay, float(asked or 0))
            self._hosts[site] = _Host(robots, delay, time.monotonic())
        return self._hosts[site]

    def _robots(self, site: str) -> RobotFileParser | str:
        """Read a site's rules: none there allows all, a server that fails forbids all."""
        import httpx

        robots = RobotFileParser()
        robots.parse([])
        url = f"{site}/robots.txt"
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                with self._client.stream("GET", url) as response:
                    if response.has_redirect_location:
                        url = normal(str(response.url.join(response.headers["Location"])))
                        if not url.startswith(("http:", "https:")):
                            return robots
                        continue
                    if response.is_server_error:
                        return _words(response.status_code)
                    if response.is_success:
                        text = self._body(response, _ROBOTS_BYTES)
                        if isinstance(text, bytes):
                            robots.parse(text.decode("utf-8-sig", "replace").splitlines())
                    return robots
        except httpx.TimeoutException:
            return f"no answer within {self._manners.timeout:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            return str(error) or type(error).__name__
        return robots


def normal(url: str) -> str:
    """Return an address as it is compared and stored: no fragment, no default port, a path."""
    import httpx

    text = str(httpx.URL(url.strip()).copy_with(fragment=None))
    parts = urlsplit(text)
    return text if parts.path else urlunsplit(parts._replace(path="/"))


def _page(url: str, data: bytes, response: httpx.Response) -> Page:
    headers: Mapping[str, str] = response.headers
    return Page(
        url=url,
        data=data,
        media=headers.get("Content-Type", "").partition(";")[0].strip().lower(),
        charset=response.charset_encoding,
        etag=headers.get("ETag", ""),
        modified=headers.get("Last-Modified", ""),
    )


def _words(status: int) -> str:
    try:
        return f"the server says {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"the server says {status}"


def _is_private(host: str) -> bool:
    """Is a host on this machine or its own network? What cannot be resolved is not."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(not ipaddress.ip_address(at[4][0]).is_global for at in found)
