"""LaTeX stays as it is written; sections, environments and tables are where it may be cut."""

from __future__ import annotations

import pytest

from epicrag.connectors.tex import parse_tex, plain
from epicrag.types import Document

SOURCE = r"""\documentclass{article}
\title{On \emph{Ducks}\thanks{nobody}}
\author{Ann Lee \and Bo Ray}
\date{May 1, 2024}
\begin{document}
\maketitle

\section{Intro \& aims}\label{sec:a}
Words. % a remark

\begin{itemize}
\item one
\item two
\end{itemize}

\begin{verbatim}
\section{no}

\end{verbatim}

\subsection*[short]{A \texttt{long}
  heading}

\begin{tabular}{lr}
\hline
Name & Count \\ \hline
a & 1 \\
b & 2 \\
\end{tabular}
\end{document}
"""


def heading(source: str, word: str) -> str | None:
    document = Document("/a", source, "", anchors=parse_tex(source).anchors)
    return document.place(source.index(word), source.index(word) + 1).heading


def test_text_title_and_meta():
    parsed = parse_tex(SOURCE)
    assert parsed.text == SOURCE and parsed.title == "On Ducks"
    assert parsed.meta == {"author": ("Ann Lee", "Bo Ray"), "date": "2024-05-01", "year": 2024}


def test_headings_are_words_without_commands():
    assert heading(SOURCE, "Words") == "Intro & aims"
    assert heading(SOURCE, "a & 1") == "Intro & aims > A long heading"
    assert plain(r"$x_1$ of~\textbf{y}\footnote{z}") == "x_1 of y"


def test_blocks_and_table():
    parsed = parse_tex(SOURCE)
    kinds = [block.kind for block in parsed.blocks]
    assert kinds[0] == "code" and kinds.count("code") == 2 and kinds.count("row") >= 3
    (table,) = parsed.tables
    assert "Name & Count" in table.head


@pytest.mark.parametrize(
    "source", ["", "\\section", "\\section{", "\\begin{tabular}", "\\begin{verbatim}x"]
)
def test_odd_ends_are_no_trouble(source: str):
    assert parse_tex(source).text == source
