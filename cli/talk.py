"""A conversation as the command line holds it: one turn after another, and the commands between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import typer

from epicrag.cli.ask import answer_json, print_deltas, receipt_line, show_sources
from epicrag.cli.hold import hold
from epicrag.cli.output import Output, clean, count, line_of
from epicrag.cli.reach import Face, is_beside
from epicrag.condense import Rewriter, condense, model_rewriter
from epicrag.errors import EpicragError, UsageError
from epicrag.history import messages_of
from epicrag.passages import remember, show
from epicrag.remote import Remote, ServerGoneError, policy_named
from epicrag.sessions import Exchange, Session, Sessions
from epicrag.types import Answer

if TYPE_CHECKING:
    from epicrag.pipeline import Pipeline

HELP = """\
/help           this
/new            begin a new conversation
/sources        all passages that the last answer was read from
/show N         the text of one of them
/k N            put N passages before the model from now on
/policy NAME    another link policy: full, prefix, none, legolink(16) …
/retry          ask the last question again
/undo           take the last question and its answer back
/exit           end; so do Ctrl-D, and Ctrl-C at the prompt, twice
A line that begins with // is asked with one of them."""


@dataclass(slots=True)
class Manner:
    """How the turns to come are answered."""

    k: int | None = None
    policy: str | None = None
    filter: str | None = None
    strict: bool = False
    condense: str = "auto"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    show_timing: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the turn that its answer takes the place of."""

    question: str
    instead: Exchange | None = None


@dataclass(slots=True)
class Talk:
    """One conversation. `run` may be called again with another face: it goes on where it stopped."""

    out: Output
    sessions: Sessions
    session: Session
    manner: Manner
    lines: Iterator[str] | None = None
    """Where questions come from; None: from a person at a terminal."""
    is_saved: bool = True
    code: int = 0
    """The exit code: of the first turn that failed, where no person is there to see it."""
    _pending: Asked | None = None
    """A question that whoever answered has not begun to answer."""
    _asked: Asked | None = None
    """The last question; with the turn that it became, or was to replace."""
    _answer: Answer | None = None
    _dropped: int = 0
    _rewriter: tuple[Face, Rewriter] | None = None

    def run(self, face: Face) -> int:
        """Answer until there are no more questions; return the exit code."""
        if self._pending is not None:
            self._say(face, self._pending)
        for line in self.lines if self.lines is not None else self._typed():
            if not self._take(face, line):
                break
        return self.code

    def ask(self, face: Face, question: str) -> None:
        """One turn, whose failure is the caller's."""
        self._ask(face, Asked(question))

    def _ask(self, face: Face, asked: Asked) -> None:
        self._pending = self._asked = asked
        self._turn(face, asked)
        self._pending = None

    # --- lines ---

    def _typed(self) -> Iterator[str]:
        """Lines of a person; Ctrl-C at the prompt says how to end, and ends the second time."""
        reader = _reader(self.session)
        is_warned = False
        while True:
            try:
                line = reader()
            except EOFError:
                self.out.note()
                return
            except KeyboardInterrupt:
                self.out.note()
                if is_warned:
                    return
                is_warned = True
                self.out.note("Ctrl-C again ends, and so does Ctrl-D; the conversation is kept")
                continue
            is_warned = False
            yield line

    def _take(self, face: Face, line: str) -> bool:
        """One line: a command, or a question. Returns whether to go on."""
        line = line.strip()
        if not line:
            return True
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line[1:].partition(" ")
            if name in ("exit", "quit"):
                return False
            try:
                self._command(face, name, rest.strip())
            except typer.Exit:
                raise
            except Exception as error:  # noqa: BLE001 - no command ends a conversation
                self._failed(error)
            return True
        self._say(face, Asked(line.removeprefix("/")))
        return True

    def _say(self, face: Face, asked: Asked) -> None:
        """A turn in a row of turns: what goes wrong is said, and the conversation goes on."""
        try:
            self._ask(face, asked)
        except ServerGoneError as error:
            if not error.began and isinstance(face, Remote) and face.server.is_own:
                raise  # nothing was shown: whoever answers next takes the question over
            self._failed(error)
        except typer.Exit:
            raise  # nobody reads what is written any more
        except Exception as error:  # noqa: BLE001 - no turn ends a conversation
            self._failed(error)
        except KeyboardInterrupt:
            if self.lines is not None:
                raise
            self.out.note("stopped; the conversation is kept without this question (/retry)")
        self._pending = None

    def _failed(self, error: Exception) -> None:
        code = EpicragError.exit_code
        if isinstance(error, EpicragError):
            code = error.exit_code
            self.out.failure(error)
        else:
            self.out.unexpected(error)
        if self.lines is not None:
            self.code = self.code or code

    # --- a turn ---

    def _turn(self, face: Face, asked: Asked) -> None:
        out, manner, question = self.out, self.manner, asked.question
        turns = [turn for turn in self.session.turns if turn is not asked.instead]
        with self._loading(face):
            condensed = condense(question, turns, manner.condense, self._rewriting(face))
        if condensed.is_changed:
            out.detail(f"searching for: {condensed.query} ({condensed.reason})")
        with self._loading(face):
            stream = face.stream(
                question,
                k=manner.k,
                policy=manner.policy,
                sampling=face.sampling(**manner.sampling),
                strict=manner.strict,
                filter=manner.filter,
                history=messages_of(turns),
                query=condensed.query if condensed.is_changed else None,
            )
        with stream:
            if not out.is_machine and not manner.strict:
                print_deltas(out, stream)
            answer = stream.finish()
        facts = stream.conversation()
        with hold():
            self._keep(face, answer, condensed.query, asked.instead)
        if out.is_machine:
            turn = {"session": self.session.name, "turn": len(self.session.turns), **facts}
            out.object({**answer_json(answer, stream.notes), **turn})
            return
        if manner.strict:
            out.text(answer.text)
        self._tell(answer, stream.notes, facts)

    def _loading(self, face: Face) -> AbstractContextManager[None]:
        """A pipeline loads its models at the first question: no interrupt may leave half of one behind."""
        return nullcontext() if isinstance(face, Remote) else hold(self.out.note)

    def _keep(self, face: Face, answer: Answer, query: str, instead: Exchange | None) -> None:
        self._answer = answer
        if is_beside(face):
            remember(face, answer.sources)
        try:
            self.session.add(Exchange.of(answer, query), instead)
        except UsageError as error:
            # The answer is there: a disk that is full does not take it back.
            self.session.file = None
            self.out.note(f"note: {error.message}; going on without keeping the conversation")
        self._asked = Asked(answer.question, self.session.turns[-1])

    def _tell(self, answer: Answer, notes: list[str], facts: Mapping[str, Any]) -> None:
        show_sources(self.out, answer)
        for note in notes:
            self.out.note(f"note: {note}")
        dropped = int(facts["dropped_turns"])
        if dropped != self._dropped:
            self._dropped = dropped
            self.out.note(
                f"note: the conversation is longer than the model's window: its first "
                f"{count(dropped, 'turn')} {'is' if dropped == 1 else 'are'} no longer read"
            )
        if self.manner.show_timing and answer.receipt:
            self.out.note(receipt_line(answer.receipt) + history_line(facts))

    def _rewriting(self, face: Face) -> Rewriter | None:
        """The model's way to condense: of a pipeline only, for a server is asked no such thing."""
        if self.manner.condense != "model" or isinstance(face, Remote):
            return None
        if self._rewriter is None or self._rewriter[0] is not face:
            self._rewriter = (face, model_rewriter(cast("Pipeline", face).engine))
        return self._rewriter[1]

    # --- commands ---

    def _command(self, face: Face, name: str, rest: str) -> None:
        commands: dict[str, Callable[[Face, str], None]] = {
            "help": lambda *_: self.out.note(HELP),
            "new": self._new,
            "sources": self._sources,
            "show": self._show,
            "k": self._set_k,
            "policy": self._set_policy,
            "retry": self._retry,
            "undo": self._undo,
        }
        if name not in commands:
            known = ", ".join(f"/{one}" for one in (*commands, "exit"))
            raise UsageError(f"there is no command /{name}", f"there are {known}")
        commands[name](face, rest)

    def _new(self, *_: object) -> None:
        self.session = self.sessions.new() if self.is_saved else Session("")
        self._answer, self._asked, self._dropped = None, None, 0
        self.out.note("a new conversation")

    def _sources(self, *_: object) -> None:
        show_sources(self.out, self._answered(), whole=True)

    def _show(self, face: Face, rest: str) -> None:
        answer = self._answered()
        by_number = {str(source.n): source for source in answer.sources}
        source = by_number.get(rest.strip("[]"))
        if source is None:
            known = ", ".join(by_number) or "none"
            raise UsageError(f"the last answer has no source {rest!r}", f"it has {known}")
        if isinstance(face, Remote):
            text = str(face.passage(source.chunk)["text"])
        else:
            text = show(cast("Pipeline", face), source.chunk)[0].chunk.text
        heading = f" · {line_of(source.heading)}" if source.heading else ""
        self.out.linked_note(f"[{source.n}] ", self.out.place(source.path, source), heading)
        self.out.note(text.strip("\n"))

    def _answered(self) -> Answer:
        if self._answer is None:
            raise UsageError("nothing was answered yet", "ask something first")
        return self._answer

    def _set_k(self, _: Face, rest: str) -> None:
        if not rest.isdecimal() or not 0 < int(rest) <= 1000:
            raise UsageError(f"/k takes a number of passages, not {rest!r}", "for example: /k 4")
        self.manner.k = int(rest)
        self.out.note(f"{count(self.manner.k, 'passage')} from now on")

    def _set_policy(self, _: Face, rest: str) -> None:
        self.manner.policy = policy_named(rest)
        self.out.note(f"{self.manner.policy} from now on")

    def _retry(self, face: Face, _: str) -> None:
        """Ask the last question again; its answer, where there is one, gives way to the new one once that is there."""
        turns = self.session.turns
        asked = self._asked or (Asked(turns[-1].question, turns[-1]) if turns else None)
        if asked is None:
            raise UsageError("nothing was asked yet", "ask something first")
        self._say(face, asked)

    def _undo(self, *_: object) -> None:
        taken = self.session.undo()
        if taken is None:
            raise UsageError("there is nothing to take back", "the conversation is empty")
        self._answer = self._asked = None
        self.out.note(f"taken back: {line_of(taken.question)}")


def history_line(facts: Mapping[str, Any]) -> str:
    """What the conversation took, behind a receipt."""
    tokens, reused, dropped = (
        int(facts[name]) for name in ("history_tokens", "history_reused", "dropped_turns")
    )
    if not tokens and not dropped:
        return ""
    left_out = f", {count(dropped, 'turn')} left out" if dropped else ""
    return f" · history {tokens:,} tokens, {reused:,} of them found again{left_out}"


def _reader(session: Session) -> Callable[[], str]:
    """Reads lines of a terminal, with editing where the answer goes to one, too."""
    if not sys.stdout.isatty():

        def plain() -> str:
            sys.stderr.write("> ")
            sys.stderr.flush()
            if line := sys.stdin.readline():
                return line
            raise EOFError

        return plain
    with suppress(ImportError):
        import readline

        readline.clear_history()
        for turn in session.turns:
            readline.add_history(clean(line_of(turn.question)))
    return lambda: input("> ")
