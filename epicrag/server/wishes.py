"""How a request of OpenAI's wants its answer: how tokens are chosen, what is computed again, what is passed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epicrag.errors import UsageError
from epicrag.server.errors import ApiError
from epicrag.server.openai_types import ChatRequest, JsonFormat, Request, SchemaFormat, Settings

if TYPE_CHECKING:
    from epicrag.serving.constrain import Grammar
    from epicrag.serving.policies import Policy
    from epicrag.serving.sample import Sampling

RETRIEVAL = ("k", "filter", "mode", "min_score", "strict")
"""Settings that mean something only where passages are searched for."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """A request's settings, checked. `max_tokens` None: as many as the server gives, or as fit."""

    max_tokens: int | None
    choosing: dict[str, Any]
    """The other fields of `Sampling`."""
    policy: str | None
    settings: Settings
    warnings: tuple[str, ...] = ()

    @property
    def is_json(self) -> bool:
        return self.choosing.get("grammar") is not None

    def sampling(self, max_tokens: int) -> Sampling:
        from epicrag.serving.sample import Sampling

        return Sampling(max_tokens=max_tokens, **self.choosing)

    def chosen_policy(self, configured: str) -> Policy:
        """The link policy, or a UsageError that names what is possible."""
        from epicrag.serving.policies import parse_policy

        try:
            return parse_policy(self.policy or configured)
        except UsageError as error:
            raise blamed(error, "epicrag.link_policy") from error


def blamed(error: UsageError, param: str) -> ApiError:
    """A usage error with the field that is to blame."""
    return ApiError(400, error.message, error.hint, param=param)


def wishes_of(request: Request) -> Wishes:
    """Check a request's settings. ApiError 400 for those that mean nothing."""
    if request.stream_options is not None and not request.stream:
        raise ApiError(
            400,
            "stream_options is for streams",
            "leave it out, or ask for stream: true",
            param="stream_options",
        )
    settings = request.epicrag or Settings()
    return Wishes(
        max_tokens=_max_tokens(request),
        choosing=_choosing(request),
        policy=settings.link_policy,
        settings=settings,
        warnings=tuple(_passed_over(request)),
    )


def _max_tokens(request: Request) -> int | None:
    newer = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    return newer or request.max_tokens


def _choosing(request: Request) -> dict[str, Any]:
    greedy = not request.temperature or request.top_p == 0
    seed, stop = request.seed, request.stop
    choosing: dict[str, Any] = {
        "temperature": 0.0 if greedy else request.temperature,
        "top_p": request.top_p or 1.0,
        "top_k": max(request.top_k or 0, 0),
        "seed": seed & (2**63 - 1) if seed is not None else None,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()),
    }
    grammar = _grammar(request) if isinstance(request, ChatRequest) else None
    return {**choosing, "grammar": grammar} if grammar else choosing


def _grammar(request: ChatRequest) -> Grammar | None:
    shape = request.response_format
    if not isinstance(shape, JsonFormat | SchemaFormat):
        return None
    from epicrag.serving.constrain import Grammar

    if isinstance(shape, JsonFormat):
        return Grammar.json_object()
    try:
        return Grammar.json_schema(shape.json_schema.schema_)
    except UsageError as error:
        raise blamed(error, "response_format.json_schema.schema") from error


def _passed_over(request: Request) -> list[str]:
    """What was asked for and is not done, and changes an answer only a little."""
    warnings = []
    if isinstance(request, ChatRequest) and (request.tools or request.functions):
        given = "tools" if request.tools else "functions"
        warnings.append(f"{given}: this server calls none, the model was not told of them")
    warnings += [
        f"{name}: not applied"
        for name in ("presence_penalty", "frequency_penalty")
        if getattr(request, name)
    ]
    return warnings


def pointless(settings: Settings, why: str) -> list[str]:
    """Say which settings of retrieval were given where nothing is retrieved."""
    given = [name for name in RETRIEVAL if name in settings.model_fields_set]
    return [f"epicrag.{', epicrag.'.join(given)}: {why}"] if given else []
