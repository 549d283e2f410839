"""LlamaIndex's own counting of tokens, done by the model's tokenizer."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

import llama_index.core
from llama_index.core.settings import Settings

if TYPE_CHECKING:
    from epicrag.llamaindex.llm import EpicragLLM


class use_tokenizer:
    """From now on, or in a `with` block, `Settings.tokenizer` is that of a model.

    Node parsers, memories and the budgets of LlamaIndex's own synthesizers count with it, in the whole process;
    without it they count with OpenAI's.
    """

    def __init__(self, llm: EpicragLLM) -> None:
        self._before = llama_index.core.global_tokenizer  # None where nothing was counted yet
        ids = llm.engine.tokenizer.ids
        Settings.tokenizer = lambda text: list(ids(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        llama_index.core.global_tokenizer = self._before
