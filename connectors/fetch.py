"""One address after another, fetched politely: robots.txt, a pause between requests, and limits."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit, urlunsplit
from urllib.robotparser import RobotFileParser

from epicrag.connectors.base import Limits, file_too_big, took_too_long
from epicrag.connectors.inflate import unpack

if TYPE_CHECKING:
    import httpx

AGENT = "epicrag"
"""What robots.txt may name us by."""
_ROBOTS_BYTES = 500 * 1024
"""What is read of a robots.txt, as RFC 9309 asks for at least."""
_MAX_DELAY = 10**9
_CANNOT = "cannot be fetched: "
_PRIVATE = "it leads into a private network"
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
    """Why there is nothing: it is gone, must not be read ("skipped"), could not be had ("failed"), or
    was not asked for in this run ("left")."""

    url: str
    kind: Literal["gone", "skipped", "failed", "left"]
    reason: str


Validators = Callable[[str], tuple[str, str]]
"""Of an address: the etag and the time of the version that is known, "" where there is none."""


class _Unreached(NamedTuple):
    """Why no connection to a host came about, and whether that is for want of a network at all."""

    reason: str
    is_offline: bool


@dataclass(slots=True)
class _Host:
    """One host: what it allows, and when it was asked last."""

    robots: RobotFileParser | str | _Unreached
    """Its rules, or why they could not be had."""
    delay: float
    asked: float = field(default=-1e9)


class Fetcher:
    """Fetches addresses one by one. Addresses are normal: see `normal`.

    `trusted` are addresses that the user gave. Of what is on a private network, only the hosts of
    these are asked, whatever a page, a sitemap, a robots.txt or a name's look-up leads to.
    """

    def __init__(self, manners: Manners, limits: Limits, trusted: tuple[str, ...] = ()) -> None:
        import httpx

        from epicrag import __version__
        from epicrag.connectors.wire import Transport

        self._manners = manners
        self._limits = limits
        self._hosts: dict[str, _Host] = {}
        self._seconds = manners.max_seconds
        self._ends = 0.0
        self._transport = Transport(trusted)
        self._client = httpx.Client(
            headers={"User-Agent": f"{AGENT}/{__version__}", "Accept-Encoding": "identity"},
            timeout=manners.timeout,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            transport=self._transport,
        )

    def close(self) -> None:
        self._client.close()

    def get(self, url: str, validators: Validators = lambda url: ("", "")) -> Page | Same | NoPage:
        """Fetch an address, and where it has moved to. Whatever goes wrong is a `NoPage`."""
        self._ends = time.monotonic() + self._seconds
        try:
            return self._follow(url, validators)
        finally:
            self._seconds = self._ends - time.monotonic()

    def _follow(self, url: str, validators: Validators) -> Page | Same | NoPage:
        from epicrag.connectors.wire import PrivateError

        at = url
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                if self._left() <= 0:
                    return NoPage(at, "left", self._all_used())
                if (refusal := self._refusal(at)) is not None:
                    return refusal
                found = self._request(at, validators(at))
                if not isinstance(found, str):
                    return found
                at = found
        except PrivateError:
            return NoPage(at, "skipped", f"{_PRIVATE}: give it by name")
        except Exception as error:  # noqa: BLE001 - a server's doings cost its page, never the run
            if self._left() <= 0:
                return NoPage(at, "left", self._all_used())
            return NoPage(at, "failed", self._why(error))
        return NoPage(at, "failed", f"it moves more than {_MAX_REDIRECTS} times: {url}")

    def _left(self) -> float:
        return self._ends - time.monotonic()

    def _all_used(self) -> str:
        limit = f"{self._manners.max_seconds:g} seconds"
        return f"the limit of {limit} for the web is reached; raise max_web_seconds"

    def _why(self, error: Exception) -> str:
        import httpcore

        from epicrag.connectors.wire import TooSlowError

        if isinstance(error, TooSlowError):
            return took_too_long(self._limits.max_file_seconds).reason
        if isinstance(error, httpcore.TimeoutException):
            return f"no answer within {self._manners.timeout:g} s"
        return f"{_CANNOT}{str(error) or type(error).__name__}"

    def _refusal(self, url: str) -> NoPage | None:
        """Say why an address must not be asked for."""
        import httpx

        parts = httpx.URL(url)
        if parts.scheme not in _SCHEMES or not parts.host:
            return NoPage(url, "skipped", "it leads to what is no web address")
        robots = self._host(parts).robots
        if isinstance(robots, _Unreached):
            return NoPage(url, "failed", f"its host cannot be reached: {robots.reason}")
        if isinstance(robots, str):
            return NoPage(url, "failed", f"robots.txt cannot be read, which forbids all: {robots}")
        if not robots.can_fetch(AGENT, url):
            return NoPage(url, "skipped", "its robots.txt asks not to read it")
        return None

    def _request(self, url: str, known: tuple[str, str]) -> Page | Same | NoPage | str:
        """Ask once; return the address it has moved to as text."""
        names = ("If-None-Match", "If-Modified-Since")
        headers = {name: value for name, value in zip(names, known, strict=True) if value}
        if (refusal := self._pause(url)) is not None:
            return refusal
        with self._ask(url, headers) as response:
            status = response.status_code
            if status == HTTPStatus.NOT_MODIFIED and headers:
                return Same(url)
            if response.has_redirect_location:
                return normal(str(response.url.join(response.headers["Location"])))
            if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                return NoPage(url, "gone", _words(status))
            if not response.is_success:
                return NoPage(url, "failed", _words(status))
            most = self._limits.max_file_bytes
            data, is_all = _body(response, most)
            if not is_all:
                return NoPage(url, "skipped", file_too_big(most + 1, most))
            return _page(url, data, response)

    def _ask(
        self, url: str, headers: Mapping[str, str] | None = None
    ) -> AbstractContextManager[httpx.Response]:
        """Send a request, which is over in the time that one may take, or what the run has left."""
        self._transport.allow(min(self._limits.max_file_seconds, self._left()))
        return self._client.stream("GET", url, headers=headers)

    def _pause(self, url: str) -> NoPage | None:
        """Wait until the host may be asked again; say so if that is not in this run."""
        import httpx

        host = self._host(httpx.URL(url))
        wait = host.asked + host.delay - time.monotonic()
        if wait > self._left():
            reason = f"the pause of {host.delay:g} s between two requests to its host is longer"
            return NoPage(url, "left", f"{reason} than what is left of max_web_seconds")
        if wait > 0:
            time.sleep(wait)
        host.asked = time.monotonic()
        return None

    def _host(self, parts: httpx.URL) -> _Host:
        site = f"{parts.scheme}://{parts.netloc.decode('ascii')}"
        if site not in self._hosts:
            robots = self._robots(site)
            asked = robots.crawl_delay(AGENT) if isinstance(robots, RobotFileParser) else None
            delay = max(self._manners.delay, float(min(int(asked or 0), _MAX_DELAY)))
            self._hosts[site] = _Host(robots, delay, time.monotonic())
        return self._hosts[site]

    @property
    def offline(self) -> str | None:
        """Why no host at all could be asked, where there is no network; None otherwise."""
        hosts = [host.robots for host in self._hosts.values()]
        away = [host.reason for host in hosts if isinstance(host, _Unreached) and host.is_offline]
        return away[0] if away and len(away) == len(hosts) else None

    def _robots(self, site: str) -> RobotFileParser | str | _Unreached:
        """Read a site's rules: none there allows all, any that cannot be had forbid all."""
        import httpcore

        from epicrag.connectors.wire import PrivateError

        robots = RobotFileParser()
        robots.parse([])
        first = url = f"{site}/robots.txt"
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                with self._ask(url) as response:
                    if response.has_redirect_location:
                        url = normal(str(response.url.join(response.headers["Location"])))
                        if not url.startswith(("http:", "https:")):
                            return robots
                        continue
                    if response.is_server_error:
                        return _words(response.status_code)
                    if response.is_success:
                        robots.parse(_lines(*_body(response, _ROBOTS_BYTES)))
                    return robots
        except PrivateError:
            if url == first:
                raise
            return _PRIVATE
        except Exception as error:  # noqa: BLE001 - as in `_follow`
            if url == first and isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout):
                return _Unreached(
                    self._why(error).removeprefix(_CANNOT), _is_without_network(error)
                )
            return self._why(error)
        return robots


def _is_without_network(error: BaseException | None) -> bool:
    """Whether a connection failed because there is no way out, and not because of the host."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno == socket.EAI_AGAIN
        if isinstance(error, OSError):
            return error.errno in (errno.ENETUNREACH, errno.ENETDOWN)
        error = error.__cause__ or error.__context__  # httpcore raises again from None
    return False


def _body(response: httpx.Response, most: int) -> tuple[bytes, bool]:
    """Read the first `most` bytes of a body, and whether that is all. ValueError: not readable."""
    packing = response.headers.get("Content-Encoding", "")
    return unpack(response.iter_raw(), packing, most)


def _lines(data: bytes, is_all: bool) -> list[str]:
    """Return the lines of a robots.txt; one that is cut is no rule."""
    lines = data.decode("utf-8-sig", "replace").splitlines()
    return lines if is_all else lines[:-1]


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
