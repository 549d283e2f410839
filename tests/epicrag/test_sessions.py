"""Conversations on disk: appended, whole or not at all, and nobody else's to read."""

from __future__ import annotations

import json
import os

import pytest

from epicrag.errors import DamagedError, UsageError
from epicrag.sessions import Cited, Exchange, Sessions

FIRST = Exchange("How long?", "14 months.", True, "How long?", (Cited(1, "ab", "/d/a.md"),), "t")
SECOND = Exchange("And fast?", "4 months.", True, "How long? And fast?", (), "t")


@pytest.fixture
def sessions(tmp_path):
    index = tmp_path / "index"
    index.mkdir()
    return Sessions(index)


def test_turns_come_back_as_they_were_said(sessions):
    session = sessions.open("talk")
    session.add(FIRST)
    session.add(SECOND)
    assert sessions.open("talk").turns == [FIRST, SECOND]
    assert sessions.latest().name == "talk"


def test_a_session_is_for_its_owner_only(sessions):
    session = sessions.new()
    session.add(FIRST)
    assert session.file.stat().st_mode & 0o777 == 0o600
    assert session.file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("torn", [1, 20, 100])
def test_a_torn_last_line_is_dropped_and_written_over(sessions, torn):
    session = sessions.open("talk")
    session.add(FIRST)
    session.add(SECOND)
    whole = session.file.read_bytes()
    session.file.write_bytes(whole[:-torn])
    again = sessions.open("talk")
    assert again.turns == [FIRST]
    again.add(SECOND)
    assert sessions.open("talk").turns == [FIRST, SECOND]
    assert all(json.loads(line) for line in session.file.read_text().splitlines())


def test_a_file_cut_anywhere_holds_the_turns_that_were_whole(sessions):
    session = sessions.open("talk")
    session.add(FIRST)
    after_first = session.file.stat().st_size
    session.add(SECOND)
    whole = session.file.read_bytes()
    for end in range(len(whole)):
        session.file.write_bytes(whole[:end])
        assert sessions.open("talk").turns == ([FIRST] if end >= after_first else [])


def test_a_damaged_line_in_the_middle_is_named(sessions):
    session = sessions.open("talk")
    session.add(FIRST)
    session.file.write_bytes(b"{oops\n" + session.file.read_bytes())
    with pytest.raises(DamagedError, match=r"line 1 of .*talk\.jsonl"):
        sessions.open("talk")
    (summary,) = sessions.list()
    assert (summary.name, summary.turns) == ("talk", 0)
    assert "line 1" in summary.damage


def test_a_later_version_is_refused(sessions):
    session = sessions.open("talk")
    session.add(FIRST)
    text = session.file.read_text().replace('"schema_version": 1', '"schema_version": 2')
    session.file.write_text(text)
    with pytest.raises(DamagedError, match="schema_version"):
        sessions.open("talk")


def test_what_is_taken_back_stays_taken_back(sessions):
    session = sessions.open("talk")
    assert session.undo() is None
    session.add(FIRST)
    session.add(SECOND)
    assert session.undo() == SECOND
    session.add(FIRST)
    assert sessions.open("talk").turns == [FIRST, FIRST]


def test_what_one_chat_takes_back_is_its_own(sessions):
    mine, other = sessions.open("talk"), sessions.open("talk")
    mine.add(FIRST)
    other.add(SECOND)
    other.add(SECOND)
    mine.undo()
    assert sessions.open("talk").turns == [SECOND, SECOND]


def test_a_turn_in_place_of_another_is_one_line(sessions):
    session = sessions.open("talk")
    old = session.add(FIRST)
    before = session.file.read_bytes()
    session.add(SECOND, instead=old)
    assert session.turns == sessions.open("talk").turns == [SECOND]
    whole = session.file.read_bytes()
    for end in range(len(before), len(whole)):
        session.file.write_bytes(whole[:end])
        assert sessions.open("talk").turns == [FIRST]


def test_turns_without_ids_can_be_taken_back(sessions):
    session = sessions.open("talk")
    session.add(FIRST)
    session.add(SECOND)
    lines = [json.loads(line) for line in session.file.read_text().splitlines()]
    for line in lines:
        line.pop("id", None)
    session.file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other = sessions.open("talk")
    other.add(FIRST)
    again = sessions.open("talk")
    again.turns.pop()
    assert again.undo() == SECOND
    assert sessions.open("talk").turns == [FIRST, FIRST]
    with session.file.open("a") as file:
        file.write('{"undo": 2}\n')
    assert sessions.open("talk").turns == [FIRST]


def test_what_cannot_be_taken_back_on_disk_stays_in_memory(sessions):
    session = sessions.open("talk")
    session.add(FIRST)
    away = session.file.rename(session.file.with_suffix(".away"))
    session.file.mkdir()
    with pytest.raises(UsageError):
        session.undo()
    assert session.turns == [FIRST]
    session.file.rmdir()
    away.rename(session.file)
    assert session.undo() == FIRST


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a\0b", "a b", "x" * 65, "a\n"]
)
def test_no_name_leads_out_of_the_folder(sessions, name):
    for act in (sessions.open, sessions.forget):
        with pytest.raises(UsageError, match="cannot be called"):
            act(name)


def test_links_and_pipes_are_not_followed(sessions, tmp_path):
    sessions.folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("{}\n")
    (sessions.folder / "link.jsonl").symlink_to(secret)
    os.mkfifo(sessions.folder / "pipe.jsonl")
    for name in ("link", "pipe"):
        with pytest.raises(UsageError):
            sessions.open(name)
    assert sessions.list() == []
    assert secret.read_text() == "{}\n"


def test_the_latest_is_continued_and_the_list_begins_with_it(sessions):
    for age, name in enumerate(("old", "new")):
        session = sessions.open(name)
        session.add(FIRST)
        os.utime(session.file, (age, age))
    assert sessions.latest().name == "new"
    assert [summary.name for summary in sessions.list()] == ["new", "old"]


def test_forgetting_removes_the_file_and_says_what_there_is(sessions):
    sessions.open("talk").add(FIRST)
    with pytest.raises(UsageError) as caught:
        sessions.forget("other")
    assert "talk" in caught.value.hint
    sessions.forget("talk")
    assert sessions.list() == []
    with pytest.raises(UsageError, match="no conversation to continue"):
        sessions.latest()


def test_two_new_sessions_have_two_names(sessions):
    first = sessions.new()
    first.add(FIRST)
    second = sessions.new()
    second.add(FIRST)
    assert first.name != second.name


def test_two_that_begin_in_the_same_moment_share_no_file(sessions):
    first, second = sessions.new(), sessions.new()
    first.add(FIRST)
    second.add(SECOND)
    assert first.name != second.name
    assert sessions.open(first.name).turns == [FIRST]
    assert sessions.open(second.name).turns == [SECOND]
    second.add(FIRST)
    assert len(sessions.list()) == 2


@pytest.mark.parametrize(
    "line",
    [
        '{"undo": 1e999}',
        '{"undo": 0}',
        '{"undo": -5}',
        '{"undo": true}',
        "[" * 200_000,
        '{"turn": 1, "question": "q", "answer": "a", "sources": [{"n": 1e999}]}',
    ],
)
def test_a_line_of_nonsense_is_damage_of_its_own_file_only(sessions, line):
    sessions.open("good").add(FIRST)
    sessions.open("bad").add(FIRST)
    with (sessions.folder / "bad.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DamagedError, match="line 3"):
        sessions.open("bad")
    assert {one.name: bool(one.damage) for one in sessions.list()} == {"good": False, "bad": True}


def test_surrogates_and_line_separators_survive(sessions):
    odd = Exchange("a\udcff\u2028b", "c\nd", True, "q", (), "t")
    sessions.open("talk").add(odd)
    assert sessions.open("talk").turns == [odd]


def test_where_nothing_can_be_written_it_says_how_to_go_on(sessions):
    sessions.folder.write_text("in the way")
    with pytest.raises(UsageError) as caught:
        sessions.open("talk").add(FIRST)
    assert "--no-save" in caught.value.hint
