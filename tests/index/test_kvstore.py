"""The KV store returns exactly what was put, or says that it has it not."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource
import threading
import time

import pytest
import torch

from epicrag.errors import DeviceError, EpicragError
from epicrag.index import kvfile
from epicrag.index.kvstore import KVStore, Missing, StoredKV

META = {"layout": "1", "model": "é"}


def key_of(i):
    return hashlib.sha256(str(i).encode()).hexdigest()


KEY = key_of("k")


def pair(seed=0, dtype=torch.float16, shape=(2, 3, 5, 4)):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for _ in range(2))


@pytest.fixture
def store(tmp_path):
    return KVStore(tmp_path / "kv")


def file_of(store, key=KEY):
    return store.root / key[:2] / f"{key}.safetensors"


def size_of_one(tmp_path):
    return KVStore(tmp_path / "probe").put(KEY, *pair(), {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kv_comes_back_bit_for_bit(store, dtype):
    keys, values = pair(dtype=dtype)
    n_bytes = store.put(KEY, keys, values, META)
    stored = store.get(KEY)
    assert torch.equal(stored.keys, keys) and torch.equal(stored.values, values)
    assert (stored.keys.dtype, stored.meta) == (dtype, META)
    assert store.contains(KEY) and store.keys() == {KEY}
    assert store.nbytes() == n_bytes == file_of(store).stat().st_size
    assert store.sizes() == {KEY: n_bytes}


def test_values_may_be_of_another_width_than_keys(store):
    keys, values = pair()[0], pair(shape=(2, 3, 5, 7))[1]
    store.put(KEY, keys, values, META)
    stored = store.get(KEY)
    assert torch.equal(stored.keys, keys) and torch.equal(stored.values, values)


def test_infinities_and_nans_are_kept_as_they_are(store):
    keys, values = pair()
    keys[0, 0, 0, 0], values[0, 0, 0, 0] = float("inf"), float("nan")
    store.put(KEY, keys, values, {})
    assert torch.equal(store.get(KEY).keys.view(torch.int16), keys.view(torch.int16))
    assert torch.equal(store.get(KEY).values.view(torch.int16), values.view(torch.int16))


def test_views_and_gradients_can_be_put(store):
    keys, values = (tensor.transpose(1, 2).requires_grad_() for tensor in pair(dtype=torch.float32))
    store.put(KEY, keys, values, {})
    assert torch.equal(store.get(KEY).keys, keys)


def test_any_safetensors_reader_can_open_the_file(store):
    import safetensors.torch as load

    keys, values = pair(dtype=torch.bfloat16)
    store.put(KEY, keys, values, META)
    loaded = load.load_file(file_of(store))
    assert loaded.keys() == {"keys", "values"}
    assert torch.equal(loaded["keys"], keys) and torch.equal(loaded["values"], values)


def test_key_that_was_never_put_is_absent(store):
    assert store.get(KEY) == Missing("absent")
    assert not store.contains(KEY)
    assert (store.keys(), store.nbytes(), store.gc(set())) == (set(), 0, (0, 0))
    store.delete(KEY)


@pytest.mark.parametrize("key", ["", "ab", "../" * 22, KEY.upper(), KEY + "\n", KEY + "0"])
def test_key_must_be_64_hex_characters(store, key):
    with pytest.raises(ValueError, match="64"):
        store.get(key)


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)),
        (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 3, 2)),
        (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 0)),
        (torch.zeros(1, 1, 0, 2), torch.zeros(1, 1, 0, 2)),
        (torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2).half()),
        (torch.zeros(1, 1, 2, 2).double(), torch.zeros(1, 1, 2, 2).double()),
    ],
)
def test_pair_that_is_no_kv_is_refused(store, keys, values):
    with pytest.raises(ValueError, match="keys and values"):
        store.put(KEY, keys, values, {})
    assert store.keys() == set()


def test_metadata_names_of_the_store_are_reserved(store):
    with pytest.raises(ValueError, match="must not begin"):
        store.put(KEY, *pair(), {"epicrag.xxh3_128": "0"})


def flip(file, at):
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "three bytes": lambda file: file.write_bytes(b"abc"),
    "truncated": lambda file: os.truncate(file, file.stat().st_size - 1),
    "cut in the header": lambda file: os.truncate(file, 40),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0" * 64),
    "bit of the last value": lambda file: flip(file, -1),
    "bit of the first key": lambda file: flip(
        file, 8 + int.from_bytes(file.read_bytes()[:8], "little")
    ),
    "bit of the header length": lambda file: flip(file, 0),
    "huge header": lambda file: flip(file, 7),
    "text": lambda file: file.write_text("hello " * 100),
    "json that is no header": lambda file: file.write_bytes(
        (56).to_bytes(8, "little") + b"[]" + b" " * 54
    ),
    "other layout": lambda file: edit(file, b'"layout": "1"', b'"layout": "2"'),
    "other dtype": lambda file: edit(file, b"F16", b"BF16", pad=-2),
    "other shape": lambda file: edit(file, b"[2, 3, 5, 4]", b"[3, 2, 5, 4]"),
    "negative shape": lambda file: edit(file, b"[2, 3, 5, 4]", b"[-2,-3,5, 4]"),
    "three dimensions": lambda file: edit(file, b"[2, 3, 5, 4]", b"[2, 15,   4]"),
    "words as shape": lambda file: edit(file, b"[2, 3, 5, 4]", b'"2, 3, 5, 4"'),
}


def edit(file, old, new, pad=0):
    raw = file.read_bytes()
    assert raw.count(old)
    start = 8 + int.from_bytes(raw[:8], "little")
    head = raw[8:start].replace(old, new)
    file.write_bytes(raw[:8] + head[: start - 8] + raw[start:])


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_file_is_never_kv_and_the_next_put_repairs_it(store, damage, caplog):
    caplog.set_level(logging.WARNING, "epicrag")
    keys, values = pair()
    store.put(KEY, keys, values, META)
    damage(file_of(store))
    missing = store.get(KEY)
    assert isinstance(missing, Missing) and missing.reason == "damaged" and missing.detail
    assert "computed again" in caplog.text
    assert not store.contains(KEY)
    store.put(KEY, keys, values, META)
    assert torch.equal(store.get(KEY).keys, keys)


@pytest.mark.parametrize("at", range(0, 600, 7))
def test_no_flipped_bit_goes_unseen(store, at):
    keys, values = pair()
    size = store.put(KEY, keys, values, META)
    flip(file_of(store), at * size // 600)
    found = store.get(KEY)
    if isinstance(found, StoredKV):  # a bit of the padding of the header: nothing was lost
        assert torch.equal(found.keys, keys) and torch.equal(found.values, values)
        assert found.meta == META


def test_foreign_safetensors_file_is_damaged(store):
    import safetensors.torch as save

    file_of(store).parent.mkdir(parents=True)
    save.save_file({"weight": torch.zeros(4)}, file_of(store))
    assert store.get(KEY).reason == "damaged"


def test_kv_of_another_key_is_damaged(store):
    store.put(KEY, *pair(), {})
    other = key_of("other")
    file_of(store, other).parent.mkdir(parents=True, exist_ok=True)
    file_of(store).rename(file_of(store, other))
    assert store.get(other).reason == "damaged"


def test_folder_in_the_place_of_a_file_is_damaged_and_harmless(store):
    file_of(store).mkdir(parents=True)
    assert store.get(KEY).reason == "damaged"
    with pytest.raises(EpicragError):
        store.put(KEY, *pair(), {})


def test_putting_the_same_again_writes_nothing(store):
    keys, values = pair()
    store.put(KEY, keys, values, META)
    inode = file_of(store).stat().st_ino
    assert store.put(KEY, keys, values, META) == store.nbytes()
    assert file_of(store).stat().st_ino == inode


def test_putting_something_else_replaces_it(store):
    store.put(KEY, *pair(0), META)
    held = store.get(KEY)
    store.put(KEY, *pair(1), META)
    assert torch.equal(store.get(KEY).keys, pair(1)[0])
    assert torch.equal(held.keys, pair(0)[0])


def test_kv_outlives_its_file_and_writing_to_it_stays_private(store):
    store.put(KEY, *pair(), {})
    held = store.get(KEY)
    held.keys.zero_()
    assert torch.equal(store.get(KEY).keys, pair()[0])
    store.delete(KEY)
    assert torch.equal(held.values, pair()[1])
    assert store.get(KEY) == Missing("absent")


def test_stored_kv_holds_no_file_open(store):
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    held = []
    for i in range(20):
        store.put(key_of(i), *pair(i), {})
        held.append(store.get(key_of(i)))
    after = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    assert (len(held), after) == (20, before)


def test_full_disk_is_said_and_prior_content_is_intact(store, monkeypatch):
    store.put(KEY, *pair(), META)

    def fail(path, *_):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kvfile, "write", fail)
    for key in (KEY, key_of("new")):
        with pytest.raises(DeviceError, match="disk is full"):
            store.put(key, *pair(1), META)
    assert torch.equal(store.get(KEY).keys, pair()[0])
    assert [file.name for file in store.root.rglob("*.*")] == [file_of(store).name]


def test_write_that_the_system_stops_midway_leaves_what_was_there(store):
    store.put(KEY, *pair(), META)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(EpicragError, match="cannot be written"):
            store.put(KEY, *pair(1), META)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert torch.equal(store.get(KEY).keys, pair()[0])
    assert len(list(store.root.rglob("*.*"))) == 1


def test_read_only_store_answers_and_refuses_to_write(store, read_only):
    store.put(KEY, *pair(), META)
    frozen = KVStore(read_only(store.root))
    assert torch.equal(frozen.get(KEY).keys, pair()[0])
    with pytest.raises(EpicragError, match="Permission denied") as caught:
        frozen.put(key_of("new"), *pair(), META)
    assert "permissions" in caught.value.hint
    frozen.delete(KEY)
    assert frozen.contains(KEY)


def test_least_recently_used_goes_first(tmp_path):
    size = size_of_one(tmp_path)
    store = KVStore(tmp_path / "kv", budget_bytes=3 * size)
    for i in range(3):
        store.put(key_of(i), *pair(), {})
    store.get(key_of(0))
    store.put(key_of(3), *pair(), {})
    assert store.keys() == {key_of(0), key_of(2), key_of(3)}
    assert store.nbytes() <= 3 * size


def test_a_budget_that_was_lowered_holds_after_gc(tmp_path):
    size = size_of_one(tmp_path)
    with_room = KVStore(tmp_path / "kv")
    for i in range(4):
        with_room.put(key_of(i), *pair(), {})
    store = KVStore(tmp_path / "kv", budget_bytes=2 * size)
    assert store.gc({key_of(i) for i in range(4)}) == (2, 2 * size)
    assert store.keys() == {key_of(2), key_of(3)}


def test_pinned_kv_is_never_evicted_nor_collected(tmp_path):
    size = size_of_one(tmp_path)
    store = KVStore(tmp_path / "kv", budget_bytes=2 * size)
    store.put(key_of(0), *pair(), {})
    store.pin(key_of(0))
    store.pin(key_of(0))
    for i in range(1, 6):
        store.put(key_of(i), *pair(), {})
    assert store.keys() == {key_of(0), key_of(5)}
    store.unpin(key_of(0))
    assert store.gc(set()) == (1, size)
    assert store.keys() == {key_of(0)}
    store.unpin(key_of(0))
    assert store.gc(set()) == (1, size)


def test_what_was_just_put_stays_whatever_the_budget(tmp_path):
    store = KVStore(tmp_path / "kv", budget_bytes=1)
    for i in range(3):
        store.put(key_of(i), *pair(), {})
        assert store.keys() == {key_of(i)}


def test_budget_counts_what_was_there_before(tmp_path):
    size = size_of_one(tmp_path)
    for i in range(4):
        KVStore(tmp_path / "kv").put(key_of(i), *pair(), {})
    KVStore(tmp_path / "kv", budget_bytes=2 * size).put(key_of(9), *pair(), {})
    assert KVStore(tmp_path / "kv").nbytes() == 2 * size


def test_least_valued_goes_first_and_of_equal_value_the_least_recently_used(tmp_path):
    size = size_of_one(tmp_path)
    values = {key_of(i): value for i, value in enumerate([2.0, 0.0, 1.0, 0.0, 0.0, 5.0])}
    store = KVStore(tmp_path / "kv", budget_bytes=3 * size, value_of=values.__getitem__)
    for i in range(4):
        store.put(key_of(i), *pair(), {})
    assert store.keys() == {key_of(0), key_of(2), key_of(3)}
    store.put(key_of(4), *pair(), {})
    assert store.keys() == {key_of(0), key_of(2), key_of(4)}
    values[key_of(2)] = 9.0  # asked for meanwhile
    store.put(key_of(5), *pair(), {})
    assert store.keys() == {key_of(0), key_of(2), key_of(5)}
    store.put(key_of(3), *pair(), {})  # worth less than all there is: it goes itself
    assert store.keys() == {key_of(0), key_of(2), key_of(5)}


def test_one_scan_serves_many_evictions(tmp_path, monkeypatch):
    size = size_of_one(tmp_path)
    store = KVStore(tmp_path / "kv", budget_bytes=20 * size)
    scans = []
    scan = KVStore._scan
    monkeypatch.setattr(KVStore, "_scan", lambda self: (scans.append(1), scan(self)))
    for i in range(100):
        store.put(key_of(i), *pair(), {})
        store.get(key_of(0))
        assert store._held == store.nbytes() <= 20 * size
    assert store.keys() == {key_of(i) for i in (0, *range(81, 100))}
    assert len(scans) == 1


def test_what_another_process_used_or_removed_is_noticed_when_it_is_its_turn(tmp_path):
    size = size_of_one(tmp_path)
    ours, theirs = (KVStore(tmp_path / "kv", budget_bytes=3 * size) for _ in range(2))
    for i in range(3):
        ours.put(key_of(i), *pair(), {})
    theirs.get(key_of(0))
    theirs.delete(key_of(1))
    ours.put(key_of(3), *pair(), {})
    assert ours.keys() == {key_of(0), key_of(2), key_of(3)}
    ours.put(key_of(4), *pair(), {})
    assert ours.keys() == {key_of(0), key_of(3), key_of(4)}


def test_what_another_process_put_goes_once_ours_does_not_suffice(tmp_path, monkeypatch):
    size = size_of_one(tmp_path)
    ours, theirs = KVStore(tmp_path / "kv", budget_bytes=2 * size), KVStore(tmp_path / "kv")
    ours.put(key_of(0), *pair(), {})
    for i in range(1, 9):
        theirs.put(key_of(i), *pair(), {})
    monkeypatch.setattr("epicrag.index.kvstore._SCAN_SECONDS", 0.0)
    ours.put(key_of(9), *pair(), {})
    ours.put(key_of(10), *pair(), {})
    assert ours.keys() == {key_of(9), key_of(10)}


def test_putting_another_pair_under_a_key_counts_once(tmp_path):
    size = size_of_one(tmp_path)
    store = KVStore(tmp_path / "kv", budget_bytes=2 * size)
    store.put(key_of(0), *pair(), {})
    for i in range(5):
        store.put(key_of(1), *pair(i), {})
    assert store.keys() == {key_of(0), key_of(1)}


def test_two_stores_that_evict_at_once_stay_near_the_budget(tmp_path):
    """As two processes do: each knows the other's files from its scans alone."""
    size, bad = size_of_one(tmp_path), []

    def churn(first):
        store = KVStore(tmp_path / "kv", budget_bytes=6 * size)
        for i in range(60):
            store.put(key_of(first + i % 20), *pair(i % 20), {})
            found = store.get(key_of(i % 40))
            if isinstance(found, Missing) and found.reason == "damaged":
                bad.append(found)

    threads = [threading.Thread(target=churn, args=(first,)) for first in (0, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bad == []
    assert KVStore(tmp_path / "kv").nbytes() <= 2 * 6 * size
    KVStore(tmp_path / "kv", budget_bytes=6 * size).put(key_of(99), *pair(), {})
    assert KVStore(tmp_path / "kv").nbytes() <= 6 * size


def test_gc_removes_what_nothing_refers_to_and_what_killed_writers_left(store):
    for i in range(3):
        size = store.put(key_of(i), *pair(i), {})
    old, new = (file_of(store).with_name(f"{KEY}.{name}.tmp") for name in ("old", "new"))
    old.parent.mkdir(exist_ok=True)
    for file in (old, new):
        file.write_bytes(b"half")
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    (store.root / "notes.txt").write_text("not ours")
    assert store.gc({key_of(1), key_of("unknown")}) == (3, 2 * size + 4)
    assert store.keys() == {key_of(1)}
    assert new.exists() and (store.root / "notes.txt").exists()


def test_readers_and_writers_at_once_see_whole_kv_or_none(store):
    """One thread puts and deletes, the others read: never torn, never damaged."""
    stop = threading.Event()
    versions = [pair(i) for i in range(2)]
    bad = []

    def read():
        while not stop.is_set():
            found = store.get(KEY)
            if isinstance(found, StoredKV):
                if not any(torch.equal(found.keys, keys) for keys, _ in versions):
                    bad.append(found)
            elif found.reason == "damaged":
                bad.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    for i in range(150):
        store.put(KEY, *versions[i % 2], {})
        if i % 3 == 0:
            store.delete(KEY)
    stop.set()
    for thread in readers:
        thread.join()
    assert bad == []
