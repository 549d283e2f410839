"""What an engine owns: a pipeline that was opened for it is closed with it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from llama_index.core.settings import Settings

from epicrag.errors import UsageError

if TYPE_CHECKING:
    from epicrag.llamaindex.llm import EpicragLLM
    from epicrag.pipeline import Pipeline


class Owner:
    """`close`, or leaving a `with` block, closes the pipeline of an engine if it opened it."""

    pipeline: Pipeline | None = None
    _owns: bool = False

    def close(self) -> None:
        if self._owns and self.pipeline is not None:
            self.pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def checked(llm: Any, owner: str) -> EpicragLLM:
    """The model of an engine, by default that of Settings. UsageError: it does not read segments."""
    from epicrag.llamaindex.llm import EpicragLLM

    llm = Settings._llm if llm is None else llm
    if not isinstance(llm, EpicragLLM):
        raise UsageError(
            f"{owner} needs an EpicragLLM, not {type(llm).__name__}",
            "other models would answer without the documents: give llm=EpicragLLM(Pipeline.open())",
        )
    return llm
