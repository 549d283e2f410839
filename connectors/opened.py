"""Files opened as what they are: no link is followed that was not there when the file was found, no pipe waits."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader


def open_regular(path: str, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. OSError: there is none, or it is something else.

    Without `follow` the path must lead through no link at all, as the paths of a walk do.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        _check(path)
    _check_kind(os.stat(path, follow_symlinks=follow))  # opening a device may do something
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    try:
        _check_kind(os.fstat(file.fileno()))
        if not follow:
            _check(path)  # a folder may have been exchanged in between
    except OSError:
        file.close()
        raise
    return file


class NotRegularError(OSError):
    """What is there now is no regular file, or is not reached without a link."""


def _check(path: str) -> None:
    folder = os.path.dirname(path)
    if os.path.realpath(folder) != folder or os.path.islink(path):
        raise NotRegularError(errno.ELOOP, "a link now, which is not followed")


def _check_kind(status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise NotRegularError(errno.ELOOP, "a link now, which is not followed")
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise NotRegularError(errno.EINVAL, "not a regular file")
