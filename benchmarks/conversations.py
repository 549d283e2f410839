"""Two-turn conversations over `examples/docs` and over documentation that others wrote, with where the second
question is answered: what `bench_condense.py` measures retrieval of follow-up questions on.

The files besides `examples/docs` are chapters of the Rust book, pages of Flask's documentation and of SQLite's.
"""

from __future__ import annotations

from typing import NamedTuple


class Conversation(NamedTuple):
    first: str
    answer: str
    second: str
    path: str
    """The document that answers the second question: the end of its path."""
    needle: str
    """Words of the passage that answers it."""


FOLLOW_UPS = (
    # examples/docs
    Conversation(
        "How long does a pair of batteries last in the Tern T2?",
        "A fresh pair lasts 14 months at the normal reading interval.",
        "And at the fast interval?",
        "tern-manual.md",
        "a pair lasts 4 months",
    ),
    Conversation(
        "How long is the warranty?",
        "Five years from the day of purchase.",
        "What does it not cover?",
        "support.html",
        "damage by lightning",
    ),
    Conversation(
        "Can I send a station back?",
        "Yes, unused, within 45 days.",
        "Who pays for that?",
        "support.html",
        "The return is free of charge",
    ),
    Conversation(
        "Who founded Halvard Instruments?",
        "Ingrid Halvard, in 1987.",
        "What did she build her first gauge from?",
        "about-halvard.txt",
        "four soup ladles",
    ),
    Conversation(
        "How many stations can the Hub H1 listen to?",
        "Up to 12 stations.",
        "How much power does it use?",
        "hub-guide.md",
        "3 watts",
    ),
    Conversation(
        "How do I set a frost alarm on the hub?",
        'Open Alarms and choose "Temperature below".',
        "How many of them can it hold?",
        "hub-guide.md",
        "40 alarms",
    ),
    Conversation(
        "What does an amber blink of the status light mean?",
        "The batteries are low.",
        "And red?",
        "tern-manual.md",
        "the wind sensor does not turn",
    ),
    Conversation(
        "What is the accuracy of the temperature sensor?",
        "0.3 °C.",
        "What about humidity?",
        "tern-manual.md",
        "Humidity | 0 to 100 %",
    ),
    Conversation(
        "How do I do a factory reset of the station?",
        "Take out one battery and hold the button.",
        "What gets lost then?",
        "tern-manual.md",
        "A reset erases the pairing",
    ),
    Conversation(
        "What does a repair cost out of warranty?",
        "A flat 65 euros.",
        "How long does that take?",
        "support.html",
        "about ten working days",
    ),
    Conversation(
        "How far does the radio of the Tern T2 reach in the open?",
        "800 metres.",
        "And indoors?",
        "tern-quickstart.txt",
        "120 metres through buildings",
    ),
    Conversation(
        "How can readings be saved from the hub?",
        'Choose "Export" under Data.',
        "In which time zone are they?",
        "hub-guide.md",
        "times in it are UTC",
    ),
    # the Rust book
    Conversation(
        "What is Rc<T> in Rust?",
        "A pointer that counts how many owners a value has.",
        "Is it safe across threads?",
        "ch15-04-rc.md",
        "single-threaded",
    ),
    Conversation(
        "How are Rust strings stored?",
        "A String wraps a vector of bytes in UTF-8.",
        "Why can't I index into them?",
        "ch08-02-strings.md",
        "indexing",
    ),
    Conversation(
        "What does the ? operator do in Rust?",
        "It returns the error to the caller.",
        "Where can it be used?",
        "ch09-02-recoverable-errors-with-result.md",
        "compatible with the value the `?` is used on",
    ),
    Conversation(
        "How do I make a channel between two threads in Rust?",
        "With mpsc::channel.",
        "How do I get more than one producer?",
        "ch16-02-message-passing.md",
        "clone",
    ),
    Conversation(
        "What is a mutable reference in Rust?",
        "It allows to change a borrowed value.",
        "How many of these may there be at a time?",
        "ch04-02-references-and-borrowing.md",
        "mutable reference",
    ),
    Conversation(
        "Which integer types does Rust have?",
        "From i8 to i128, signed and unsigned.",
        "What happens if one overflows?",
        "ch03-02-data-types.md",
        "verflow",
    ),
    Conversation(
        "How do I build a project with Cargo?",
        "With cargo build.",
        "And for release?",
        "ch01-03-hello-cargo.md",
        "--release",
    ),
    Conversation(
        "What are tuple structs?",
        "Structs whose fields have no names.",
        "And those without any fields?",
        "ch05-01-defining-structs.md",
        "unit-like",
    ),
    # Flask
    Conversation(
        "What are signals in Flask?",
        "A way to notify subscribers of events.",
        "Which library implements them?",
        "signals.rst",
        "Blinker",
    ),
    Conversation(
        "What are blueprints in Flask?",
        "A way to organise an application in parts.",
        "Can they be nested?",
        "blueprints.rst",
        "ested",
    ),
    Conversation(
        "How long does a permanent session live in Flask?",
        "31 days by default.",
        "Which setting changes that?",
        "config.rst",
        "PERMANENT_SESSION_LIFETIME",
    ),
    Conversation(
        "How do I test a Flask application?",
        "With the test client.",
        "How are its command line commands tested?",
        "testing.rst",
        "test_cli_runner",
    ),
    Conversation(
        "How do I register an error handler in Flask?",
        "With the errorhandler decorator.",
        "Does this work for all exceptions?",
        "errorhandling.rst",
        "Generic Exception Handlers",
    ),
    Conversation(
        "Does Flask support async views?",
        "Yes, with the async extra.",
        "How is the performance?",
        "async-await.rst",
        "Performance",
    ),
    # SQLite
    Conversation(
        "How many columns may a SQLite table have?",
        "2000 by default.",
        "And how many tables can be joined?",
        "limits.html",
        "64 tables",
    ),
    Conversation(
        "Is SQLite a good choice for a website?",
        "For low to medium traffic, yes.",
        "When should I not use it?",
        "whentouse.html",
        "client/server",
    ),
    Conversation(
        "How do I create an AUTOINCREMENT field in SQLite?",
        "Declare a column INTEGER PRIMARY KEY.",
        "Which datatypes does it support?",
        "faq.html",
        "datatypes",
    ),
    Conversation(
        "What is the largest database that SQLite can hold?",
        "About 281 terabytes.",
        "And the longest statement?",
        "limits.html",
        "SQL Statement",
    ),
)

NEW_TOPICS = (
    Conversation(
        "How long does a pair of batteries last in the Tern T2?",
        "14 months.",
        "How long is the warranty?",
        "support.html",
        "five years",
    ),
    Conversation(
        "How long is the warranty?",
        "Five years.",
        "Which library implements Flask's signals?",
        "signals.rst",
        "Blinker",
    ),
    Conversation(
        "What are blueprints in Flask?",
        "A way to organise an application.",
        "How many people work at Halvard Instruments?",
        "about-halvard.txt",
        "34 people",
    ),
    Conversation(
        "What is Rc<T> in Rust?",
        "A pointer that counts its owners.",
        "How many alarms can the hub hold?",
        "hub-guide.md",
        "40 alarms",
    ),
    Conversation(
        "Who founded Halvard Instruments?",
        "Ingrid Halvard.",
        "What is a slice of a string in Rust?",
        "ch08-02-strings.md",
        "slice",
    ),
    Conversation(
        "How do I test a Flask application?",
        "With the test client.",
        "When can I call support?",
        "support.html",
        "8:00 to 16:00",
    ),
    Conversation(
        "Is SQLite a good choice for a website?",
        "For low to medium traffic.",
        "What does a red status light mean on the station?",
        "tern-manual.md",
        "the wind sensor does not turn",
    ),
    Conversation(
        "How far does the radio reach?",
        "800 metres.",
        "What does the ? operator do in Rust?",
        "ch09-02-recoverable-errors-with-result.md",
        "operator",
    ),
    Conversation(
        "What does a repair cost?",
        "65 euros.",
        "How many columns may a SQLite table have?",
        "limits.html",
        "columns",
    ),
    Conversation(
        "How do I set a frost alarm?",
        "Open Alarms.",
        "What changed in firmware 3.0?",
        "firmware-notes.md",
        "Skylark",
    ),
    Conversation(
        "Which integer types does Rust have?",
        "i8 to i128.",
        "How often should the rain gauge be cleaned?",
        "tern-manual.md",
        "three",
    ),
    Conversation(
        "Does Flask support async views?",
        "Yes.",
        "How do I make sure that Rust code is memory safe across threads with channels?",
        "ch16-02-message-passing.md",
        "channel",
    ),
    Conversation(
        "How do I create an AUTOINCREMENT field in SQLite?",
        "INTEGER PRIMARY KEY.",
        "Is there a way to export readings every night?",
        "hub-guide.md",
        "02:30",
    ),
    Conversation(
        "What are tuple structs?",
        "Structs whose fields have no names.",
        "What should a config file for a Flask app in production hold?",
        "config.rst",
        "config",
    ),
)
