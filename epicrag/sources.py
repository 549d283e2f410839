"""Which source what was asked for is: files, addresses on the web, documents of another program."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epicrag.errors import OfflineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from epicrag.config import Config
    from epicrag.connectors.base import Limits
    from epicrag.connectors.folder import Folder, Rules
    from epicrag.connectors.found import Source
    from epicrag.index.catalog import Catalog

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def is_address(given: str | Path) -> bool:
    """Is this an address, and not a path? `file://` is neither: give the path."""
    return isinstance(given, str) and _SCHEME.match(given) is not None


def sources_of(
    given: Sequence[str | Path],
    config: Config,
    catalog: Catalog,
    say: Callable[[str], None] | None = None,
) -> list[Source]:
    """Return the sources of paths and addresses. OfflineError: an address, and the network is off."""
    addresses = [str(word) for word in given if is_address(word)]
    paths = [Path(word) for word in given if not is_address(word)]
    sources: list[Source] = []
    if paths:
        sources.append(folder_of(paths, config))
    if addresses:
        sources.append(_web(addresses, config, catalog, say))
    return sources


def folder_of(paths: Sequence[Path], config: Config, only: Collection[str] | None = None) -> Folder:
    """Return files and folders as a source, under the configured rules and limits."""
    from epicrag.connectors.folder import Folder

    return Folder(paths, limits_of(config), _rules(config), only)


def limits_of(config: Config) -> Limits:
    """How much one file may ask of the machine, as configured."""
    from epicrag.connectors.base import Limits

    return Limits(
        max_file_bytes=config.max_file_mb << 20,
        max_chars=config.max_chars,
        max_pages=config.max_pages,
        max_pdf_seconds=config.max_pdf_seconds,
        ocr=config.ocr,
        max_ocr_seconds=config.max_ocr_seconds,
        max_archive_members=config.max_archive_members,
        max_inflated_bytes=config.max_inflated_mb << 20,
        max_inflation_ratio=config.max_inflation_ratio,
        max_file_seconds=config.max_file_seconds,
        max_archive_depth=config.max_archive_depth,
    )


def _rules(config: Config) -> Rules:
    from epicrag.connectors.folder import Rules

    return Rules(
        hidden=config.hidden,
        ignore_files=config.ignore_files,
        follow_links=config.follow_symlinks,
        never=own_folders(config),
    )


def own_folders(config: Config) -> frozenset[str]:
    """The folders that epicrag itself writes to: what is in them are no documents."""
    from epicrag.connectors.folder import real

    own = (config.index, config.home / "indexes", config.home / "models", config.home / "cache")
    return frozenset(real(os.fspath(folder)) for folder in own)


def _web(
    addresses: Sequence[str],
    config: Config,
    catalog: Catalog,
    say: Callable[[str], None] | None,
) -> Source:
    from epicrag.connectors.web import Manners, Web, as_root

    roots = [root for address in addresses if (root := as_root(address))]
    if len(roots) < len(addresses):
        bad = next(address for address in addresses if as_root(address) is None)
        raise UsageError(f"not an address that can be read: {bad}", "give an http(s):// address")
    if config.offline:
        raise OfflineError(
            f"{addresses[0]} has to be fetched, and the network is off ({_switch(config)})",
            "unset the offline switch, or give files",
        )
    manners = Manners(
        delay=config.web_delay,
        timeout=config.web_timeout,
        max_addresses=config.max_addresses,
        max_seconds=config.max_web_seconds,
    )
    return Web(roots, catalog.origins.of(roots), limits_of(config), manners, say)


def _switch(config: Config) -> str:
    return f"offline, by {config.origins.get('offline', 'default')}"
