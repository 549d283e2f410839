"""What `epicrag chat` prints, keeps and takes back."""

from __future__ import annotations

import io
import json
import os
import signal

import pytest

from epicrag.cli import hold, talk
from epicrag.errors import DeviceError
from epicrag.sessions import Sessions
from tests.cli.conftest import StubGeneration

ANSWER = "The fee is 5 euros. [1]"


@pytest.fixture(autouse=True)
def index(pipeline, tmp_path, monkeypatch):
    """An index that is there, and a pipeline that answers every turn."""
    folder = tmp_path / "home" / "indexes" / "default"
    folder.mkdir(parents=True)
    stream = pipeline.stream

    def answered(question, **options):
        if pipeline.generation is not None and not pipeline.generation.deltas:
            pipeline.generation = StubGeneration(["The fee ", "is 5 euros."])
        return stream(question, **options)

    monkeypatch.setattr(pipeline, "stream", answered)
    return folder


@pytest.fixture
def typed(cli, monkeypatch):
    """A person at a terminal, who types these lines; an exception is raised in their place."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def run(*lines, args=()):
        waiting = list(lines)

        def read():
            if not waiting:
                raise EOFError
            line = waiting.pop(0)
            if isinstance(line, type) and issubclass(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr(talk, "_reader", lambda session: read)
        return cli("chat", *args)

    return run


def asked(pipeline):
    return [(subject, options) for verb, subject, options in pipeline.calls if verb == "stream"]


def test_one_question_is_one_turn_that_is_kept(cli, pipeline, index):
    run = cli("chat", "What is the fee?")
    assert (run.code, run.out) == (0, ANSWER + "\n")
    assert "[1] docs/fees.md:3-9" in run.err
    (session,) = Sessions(index).list()
    assert (session.turns, session.first) == (1, "What is the fee?")


def test_c_goes_on_with_the_latest_and_searches_for_what_stands_alone(cli, pipeline):
    cli("chat", "What is the fee?")
    run = cli("chat", "-c", "And for dogs?", "-v")
    question, options = asked(pipeline)[1]
    assert question == "And for dogs?"
    assert options["query"] == "fee? And for dogs?"
    assert [(turn.role, turn.text) for turn in options["history"]] == [
        ("user", "What is the fee?"),
        ("assistant", "The fee is 5 euros."),
    ]
    assert "searching for: fee? And for dogs?" in run.err


def test_a_new_topic_is_searched_for_as_it_is(cli, pipeline):
    cli("chat", "What is the fee?")
    cli("chat", "-c", "When does the museum open?")
    assert asked(pipeline)[1][1]["query"] is None


def test_json_is_an_object_a_turn(cli, pipeline):
    run = cli("chat", "--jsonl", "--session", "talk", stdin=b"What is the fee?\n\nAnd for dogs?\n")
    first, second = map(json.loads, run.out.splitlines())
    assert (first["session"], first["turn"], first["answer"]) == ("talk", 1, ANSWER)
    assert (second["turn"], second["history_tokens"], second["dropped_turns"]) == (2, 0, 0)
    assert {"query", "history_reused", "receipt", "sources", "notes"} <= set(second)


def test_lines_of_stdin_are_turns_and_one_that_fails_is_no_end(cli, pipeline):
    run = cli("chat", "--json", stdin=b"   \n/nonsense\nWhat is the fee?\n/exit\nnever\n")
    assert run.code == 2
    assert '"there is no command /nonsense"' in run.out
    assert [question for question, _ in asked(pipeline)] == ["What is the fee?"]


def test_a_named_session_is_made_and_gone_on_with(cli, pipeline, index):
    cli("chat", "--session", "talk", "What is the fee?")
    cli("chat", "--session", "talk", "And for dogs?")
    assert len(Sessions(index).open("talk").turns) == 2
    run = cli("chat", "-c", "--session", "other", "x")
    assert (run.code, "talk" in run.err) == (2, True)


def test_no_save_keeps_nothing(cli, pipeline, index):
    cli("chat", "--no-save", "What is the fee?")
    assert not Sessions(index).folder.exists()
    cli("chat", "--session", "talk", "What is the fee?")
    cli("chat", "-c", "--no-save", "And for dogs?")
    assert len(asked(pipeline)[-1][1]["history"]) == 2
    assert len(Sessions(index).open("talk").turns) == 1


def test_list_and_forget(cli, pipeline, index):
    assert "no conversation" in cli("chat", "--list").err
    cli("chat", "--session", "talk", "What is the fee?")
    assert cli("chat", "--list").out == "talk  1 turn, just now  What is the fee?\n"
    assert cli("chat", "--list", "--json").json["sessions"][0]["session"] == "talk"
    assert cli("chat", "--forget", "talk").code == 0
    assert cli("chat", "--forget", "talk").code == 2
    assert cli("chat", "--forget", "../talk").code == 2


def test_commands_of_a_conversation(typed, pipeline, index):
    run = typed(
        "/help",
        "/sources",
        "What is the fee?",
        "/sources",
        "/k 3",
        "/k many",
        "/policy full",
        "/policy nonsense",
        "And for dogs?",
        "/undo",
        "/show 9",
        "//help",
        args=("--session", "talk"),
    )
    assert run.code == 0
    questions = asked(pipeline)
    assert [question for question, _ in questions] == ["What is the fee?", "And for dogs?", "/help"]
    assert (questions[1][1]["k"], questions[1][1]["policy"]) == (3, "full")
    assert len(questions[2][1]["history"]) == 2
    assert [turn.question for turn in Sessions(index).open("talk").turns] == [
        "What is the fee?",
        "/help",
    ]
    assert "nothing was answered yet" in run.err
    assert "[2] docs/dogs.pdf, p. 2" in run.err
    assert "/k takes a number" in run.err
    assert "taken back: And for dogs?" in run.err
    assert "begin" in run.err


def test_retry_takes_the_answer_back_and_asks_again(typed, pipeline, index):
    typed("/retry", "What is the fee?", "/retry", args=("--session", "talk"))
    assert [question for question, _ in asked(pipeline)] == ["What is the fee?"] * 2
    assert asked(pipeline)[1][1]["history"] == ()
    assert len(Sessions(index).open("talk").turns) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceError("out of memory")])
def test_a_retry_that_fails_leaves_the_answer_that_is_there(
    typed, cli, pipeline, index, monkeypatch, error
):
    cli("chat", "--session", "talk", "What is the fee?")
    pipeline.error = error
    typed("/retry", args=("--session", "talk"))
    assert asked(pipeline)[-1][1]["history"] == ()
    assert [turn.answer for turn in Sessions(index).open("talk").turns] == [ANSWER]


def test_a_retry_after_a_retry_that_failed_still_replaces(typed, pipeline, index, monkeypatch):
    stream, failing = pipeline.stream, [False, True, False]

    def at_times(question, **options):
        pipeline.error = DeviceError("out of memory") if failing.pop(0) else None
        return stream(question, **options)

    monkeypatch.setattr(pipeline, "stream", at_times)
    typed("What is the fee?", "/retry", "/retry", args=("--session", "talk"))
    assert len(asked(pipeline)) == 3
    assert len(Sessions(index).open("talk").turns) == 1


def test_a_retry_replaces_no_older_turn_of_the_same_words(typed, pipeline, index, monkeypatch):
    stream, failing = pipeline.stream, [False, True, False]

    def at_times(question, **options):
        pipeline.error = DeviceError("out of memory") if failing.pop(0) else None
        return stream(question, **options)

    monkeypatch.setattr(pipeline, "stream", at_times)
    typed("What is the fee?", "What is the fee?", "/retry", args=("--session", "talk"))
    assert len(Sessions(index).open("talk").turns) == 2


def test_a_new_conversation_retries_nothing_of_the_old(typed, pipeline):
    run = typed("What is the fee?", "/new", "/retry")
    assert len(asked(pipeline)) == 1
    assert "nothing was asked yet" in run.err


def test_new_begins_a_conversation_of_its_own(typed, pipeline, index):
    typed("What is the fee?", "/new", "And for dogs?", args=("--session", "talk"))
    assert asked(pipeline)[1][1]["history"] == ()
    assert len(Sessions(index).list()) == 2


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(typed, pipeline, index):
    pipeline.generation.error = KeyboardInterrupt()
    run = typed("What is the fee?", "/retry", args=("--session", "talk"))
    assert run.code == 0
    assert run.out.startswith("The fee is 5 euros.\n")
    assert "stopped" in run.err
    assert len(Sessions(index).open("talk").turns) == 1


def test_ctrl_c_while_the_models_are_loaded_waits_until_they_are(typed, pipeline, monkeypatch):
    loaded = []
    stream = pipeline.stream

    def loading(question, **options):
        if not loaded:
            signal.raise_signal(signal.SIGINT)
        loaded.append(question)
        return stream(question, **options)

    monkeypatch.setattr(pipeline, "stream", loading)
    run = typed("What is the fee?", "/retry")
    assert loaded == ["What is the fee?"] * 2
    assert "stopping as soon as this is loaded" in run.err
    assert run.err.count("stopped; the conversation is kept") == 1
    assert run.out == ANSWER + "\n"


def test_a_second_ctrl_c_ends_rather_than_going_on_with_half_a_library(monkeypatch):
    codes = []
    monkeypatch.setattr(hold.os, "_exit", codes.append)

    def loading():
        with hold.hold():
            signal.raise_signal(signal.SIGINT)
            assert codes == []
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loading()
    assert codes == [130]


def test_ctrl_c_at_the_prompt_ends_the_second_time(typed, pipeline):
    typed(KeyboardInterrupt, "What is the fee?", KeyboardInterrupt, KeyboardInterrupt, "never")
    assert [question for question, _ in asked(pipeline)] == ["What is the fee?"]


def test_ctrl_c_ends_a_single_turn_with_130(cli, pipeline, index):
    pipeline.generation.error = KeyboardInterrupt()
    assert cli("chat", "What is the fee?").code == 130
    assert Sessions(index).list() == []


def test_an_error_does_not_end_a_conversation(typed, pipeline):
    pipeline.error = DeviceError("out of memory")
    run = typed("What is the fee?", "/help")
    assert "error: out of memory" in run.err
    assert "/retry" in run.err


def test_a_fault_of_ours_does_not_end_a_conversation_either(cli, pipeline):
    pipeline.error = RuntimeError("no such thing")
    run = cli("chat", stdin=b"What is the fee?\nAnd for dogs?\n")
    assert run.code == 1
    assert run.err.count("RuntimeError: no such thing") == 2
    assert len(asked(pipeline)) == 2


def test_an_error_of_a_single_turn_is_its_exit_code(cli, pipeline, index):
    pipeline.generation = None
    assert cli("chat", "--strict", "What is the fee?").code == 4
    assert Sessions(index).list() == []


def test_an_abstention_is_kept_and_not_read_again(cli, pipeline, index):
    pipeline.generation = None
    cli("chat", "--session", "talk", "What is the fee?")
    cli("chat", "--session", "talk", "And for dogs?")
    assert asked(pipeline)[1][1]["history"] == ()
    assert asked(pipeline)[1][1]["query"] == "fee? And for dogs?"


def test_a_session_that_cannot_be_written_does_not_lose_the_answer(cli, pipeline, index):
    (index / "sessions").write_text("in the way")
    run = cli("chat", "What is the fee?")
    assert (run.code, run.out) == (0, ANSWER + "\n")
    assert "going on without keeping the conversation" in run.err


def test_the_receipt_says_what_the_conversation_took():
    facts = {"history_tokens": 310, "history_reused": 252, "dropped_turns": 4}
    assert talk.history_line(facts) == (
        " · history 310 tokens, 252 of them found again, 4 turns left out"
    )
    assert talk.history_line({**facts, "history_tokens": 0, "dropped_turns": 0}) == ""


def test_turns_that_no_longer_fit_are_said_once(typed, pipeline, monkeypatch):
    from epicrag.pipeline import AnswerStream

    facts = {"query": "q", "history_tokens": 9, "history_reused": 0, "dropped_turns": 4}
    monkeypatch.setattr(AnswerStream, "conversation", lambda self: facts)
    err = typed("What is the fee?", "And for dogs?").err
    assert err.count("its first 4 turns are no longer read") == 1


def test_control_characters_of_an_old_question_do_not_reach_the_terminal(cli, pipeline):
    cli("chat", "What is\x1b[2J the fee?")
    assert "\x1b" not in cli("chat", "--list").out


def test_bytes_that_are_no_text_are_a_question_all_the_same(cli, pipeline, index):
    run = cli("chat", os.fsdecode(b"What is \xff the fee?"))
    assert run.code == 0
    assert Sessions(index).latest().turns
