"""One writer at a time, and a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from epicrag.errors import EpicragError, LockedError
from epicrag.index.lock import FILE_NAME, WriterLock

HOLD = """
import sys, time
from pathlib import Path
from epicrag.index.lock import WriterLock
with WriterLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that is inside the lock of `tmp_path`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_second_writer_is_told_who_holds_the_lock(tmp_path, holder):
    with pytest.raises(LockedError) as caught, WriterLock(tmp_path):
        pass
    assert f"pid {holder.pid}" in caught.value.message
    assert caught.value.exit_code == 7


def test_killed_writer_holds_nothing(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert f'"pid": {holder.pid}' in (tmp_path / FILE_NAME).read_text()
    with WriterLock(tmp_path):
        assert f'"pid": {os.getpid()}' in (tmp_path / FILE_NAME).read_text()


def test_waiting_writer_gets_in_when_the_first_is_done(tmp_path):
    inside = threading.Event()

    def hold():
        with WriterLock(tmp_path):
            inside.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with WriterLock(tmp_path, wait_seconds=10):
        pass
    thread.join()


def test_waiting_ends(tmp_path):
    with WriterLock(tmp_path):
        began = time.monotonic()
        with pytest.raises(LockedError), WriterLock(tmp_path, wait_seconds=0.2):
            pass
        assert 0.2 <= time.monotonic() - began < 5


def test_lock_is_free_again_after_an_error_inside(tmp_path):
    with pytest.raises(ZeroDivisionError), WriterLock(tmp_path):
        _ = 1 / 0
    for _ in range(2):
        with WriterLock(tmp_path):
            pass


@pytest.mark.parametrize("content", [b"", b"garbage", b"[1]", b'{"pid": "x", "since": 1}'])
def test_unreadable_owner_is_no_reason_to_fail(tmp_path, content):
    with WriterLock(tmp_path):
        (tmp_path / FILE_NAME).write_bytes(content)
        with pytest.raises(LockedError, match="another epicrag is writing"), WriterLock(tmp_path):
            pass


def test_folder_that_cannot_be_written_to_is_said(tmp_path, read_only):
    with pytest.raises(EpicragError, match="cannot be used"), WriterLock(read_only(tmp_path)):
        pass


def test_a_lock_file_that_was_removed_while_waiting_locks_nothing(tmp_path):
    """Two writers would be inside at once: one of the removed file, one of the new."""
    first = WriterLock(tmp_path)
    first.__enter__()

    def remove(_: str) -> None:  # called while the second waits
        (tmp_path / FILE_NAME).unlink()
        first.__exit__(None, None, None)

    with (
        WriterLock(tmp_path, wait_seconds=5, say=remove),
        pytest.raises(LockedError),
        WriterLock(tmp_path),
    ):
        pass
