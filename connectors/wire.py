"""Connections to the web: to no address that was not checked, and for no longer than allowed."""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

_MAX_TRIED = 4
_GLOBAL = ipaddress.ip_network("2000::/3")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")


class PrivateError(Exception):
    """Raised for a name that leads into a private network, before anything is sent."""


class TooSlowError(Exception):
    """Raised when a request takes longer than `Transport.allow` gave it."""


class _Clock:
    """When the request under way must be over. All that waits for a server waits by it."""

    def __init__(self) -> None:
        self.ends = math.inf

    @contextmanager
    def within(self, timeout: float | None) -> Iterator[float | None]:
        """Give how long may be waited now: `timeout`, or what is left if that is less."""
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TooSlowError
        try:
            yield left if timeout is None else min(left, timeout)
        except httpcore.TimeoutException:
            if time.monotonic() >= self.ends:
                raise TooSlowError from None
            raise


class _Stream(httpcore.NetworkStream):
    """A connection whose every read and write looks at the clock: dripping bytes do not stop it."""

    def __init__(self, stream: httpcore.NetworkStream, clock: _Clock) -> None:
        self._stream = stream
        self._clock = clock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with self._clock.within(timeout) as left:
            return self._stream.read(max_bytes, left)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with self._clock.within(timeout) as left:
            self._stream.write(buffer, left)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        with self._clock.within(timeout) as left:
            inner = self._stream.start_tls(ssl_context, server_hostname, left)
        return _Stream(inner, self._clock)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Looks a name up once, and connects to the address that was checked, by its number.

    `named` is what may be private; None checks nothing: the way to a proxy.
    """

    def __init__(self, clock: _Clock, named: frozenset[str] | None) -> None:
        self._clock = clock
        self._named = named
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        options = list(socket_options or ())
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in _allowed(host, self._named)[:_MAX_TRIED]:
            try:
                with self._clock.within(timeout) as left:
                    stream = self._plain.connect_tcp(address, port, left, local_address, options)
                    return _Stream(stream, self._clock)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


class Transport(httpx.BaseTransport):
    """Sends requests of `httpx`. Of private addresses only those are asked that `roots` stand at.

    Its errors are those of `httpcore`, `PrivateError` and `TooSlowError`. Through a proxy of the
    environment the names are checked here, and looked up again by the proxy.
    """

    def __init__(self, roots: Iterable[str]) -> None:
        self._clock = _Clock()
        self._named = _private(roots)
        self._tls = httpx.create_ssl_context()
        self._direct = httpcore.ConnectionPool(
            ssl_context=self._tls, network_backend=_Backend(self._clock, self._named)
        )
        self._proxies: dict[str, httpcore.ConnectionPool] = {}

    def allow(self, seconds: float) -> None:
        """Give the next request so long, from its connection to the end of its body."""
        self._clock.ends = time.monotonic() + seconds

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        url = request.url
        sent = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        response = self._way(url).handle_request(sent)
        assert isinstance(response.stream, Iterable)
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response.stream),
            extensions=response.extensions,
        )

    def _way(self, url: httpx.URL) -> httpcore.ConnectionPool:
        """Return the connections to a host, or to the proxy that stands before it."""
        proxies = getproxies()
        address = proxies.get(url.scheme) or proxies.get("all")
        if not address or proxy_bypass(url.host):
            return self._direct
        _allowed(url.raw_host.decode("ascii"), self._named)
        if address not in self._proxies:
            proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
            at = proxy.url
            if at.scheme not in ("http", "https"):
                raise httpx.UnsupportedProtocol(f"a proxy that speaks {at.scheme} is not supported")
            self._proxies[address] = httpcore.HTTPProxy(
                proxy_url=httpcore.URL(
                    scheme=at.raw_scheme, host=at.raw_host, port=at.port, target=at.raw_path
                ),
                proxy_auth=proxy.raw_auth,
                proxy_headers=proxy.headers.raw,
                ssl_context=self._tls,
                network_backend=_Backend(self._clock, None),
            )
        return self._proxies[address]

    def close(self) -> None:
        for pool in (self._direct, *self._proxies.values()):
            pool.close()


def _addresses(host: str) -> list[str]:
    """Look a name up. OSError, UnicodeError: it cannot be."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(at[4][0]) for at in found))


def _private(roots: Iterable[str]) -> frozenset[str]:
    """Return the hosts of addresses that stand in a private network, by name and by number."""
    named: set[str] = set()
    for root in roots:
        try:
            host = httpx.URL(root).raw_host.decode("ascii")
            private = [address for address in _addresses(host) if not is_public(address)]
        except (OSError, ValueError, httpx.InvalidURL):
            continue
        if private:
            named.update([host, *private])
    return frozenset(named)


def _allowed(host: str, named: frozenset[str] | None) -> list[str]:
    """Return a host's addresses that may be connected to. What cannot be looked up has none."""
    try:
        found = _addresses(host)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} cannot be looked up: {error}") from error
    if named is None or host in named:
        return found
    allowed = [address for address in found if address in named or is_public(address)]
    if found and not allowed:
        raise PrivateError(host)
    return allowed


def is_public(address: str) -> bool:
    """Is an address, by number, out on the internet?"""
    at = ipaddress.ip_address(address)
    if at in _TRANSLATED:
        at = ipaddress.IPv4Address(int(at) & 0xFFFFFFFF)
    if isinstance(at, ipaddress.IPv6Address):
        return at.is_global and at in _GLOBAL and at.sixtofour is None
    return at.is_global and not at.is_multicast
