"""Threads: no more than whole cores, and what the user says stands."""

from __future__ import annotations

from pathlib import Path

from epicrag.serving.threads import choose


def machine(folder: Path, siblings: list[str], quota: str = "") -> Path:
    for processor, list_of in enumerate(siblings):
        topology = folder / f"devices/system/cpu/cpu{processor}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(list_of + "\n", encoding="ascii")
    group = folder / "fs/cgroup/pod/app"
    group.mkdir(parents=True)
    if quota:
        (group.parent / "cpu.max").write_text(quota + "\n", encoding="ascii")
    return folder


def chosen(folder: Path, given: int, allowed: set[int], **environ: str) -> tuple[int, str]:
    found = choose(given, environ=environ, allowed=allowed, system=folder, groups="0::/pod/app\n")
    return found.n, found.why


def test_two_threads_of_a_core_count_once(tmp_path: Path):
    system = machine(tmp_path, ["0-1", "0-1", "2-3", "2-3"])
    assert chosen(system, 4, {0, 1, 2, 3}) == (2, "the cores this process may run on")
    assert chosen(system, 4, {0, 1, 2})[0] == 2
    assert chosen(system, 4, {3})[0] == 1


def test_quota_of_an_outer_group_counts(tmp_path: Path):
    system = machine(tmp_path, ["0", "1", "2", "3"], quota="200000 100000")
    assert chosen(system, 4, {0, 1, 2, 3}) == (2, "the quota of its control group")


def test_quota_below_one_processor_leaves_one_thread(tmp_path: Path):
    system = machine(tmp_path, ["0", "1"], quota="20000 100000")
    assert chosen(system, 2, {0, 1})[0] == 1


def test_no_limit_leaves_torch_its_choice(tmp_path: Path):
    system = machine(tmp_path, ["0", "1"], quota="max 100000")
    assert chosen(system, 2, {0, 1}) == (2, "torch's own choice")


def test_what_the_user_set_stays(tmp_path: Path):
    system = machine(tmp_path, ["0-1", "0-1"])
    assert chosen(system, 2, {0, 1}, OMP_NUM_THREADS="2") == (2, "OMP_NUM_THREADS is set")


def test_machine_that_says_nothing_is_taken_as_it_is(tmp_path: Path):
    assert chosen(tmp_path, 3, {0, 1, 2})[0] == 3
