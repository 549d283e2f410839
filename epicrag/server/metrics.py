"""Counts for Prometheus, in a registry of their own: nothing is global, and nothing is sent anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine, Stats

TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKENS = ("exact", "stitched", "recomputed", "fresh", "generated")
TIERS = {
    "pool": "from_pool",
    "host": "from_host",
    "disk": "from_disk",
    "compiled": "compiled",
}


class Metrics:
    """What a server counts. The engine's own counts are read from it when somebody asks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "epicrag_requests",
            "Requests, by endpoint and HTTP status.",
            ("endpoint", "code"),
            registry=self.registry,
        )
        self.ttft = Histogram(
            "epicrag_ttft_seconds",
            "From a request to the first word of its answer.",
            buckets=TTFT_BUCKETS,
            registry=self.registry,
        )
        self.cancelled = Counter(
            "epicrag_cancelled",
            "Answers that were stopped: nobody read on, or they took too long.",
            ("why",),
            registry=self.registry,
        )
        self.recognised = Counter(
            "epicrag_recognised_chars",
            "Characters of plain text that were found to be known chunks.",
            registry=self.registry,
        )

    def watch(self, engine: Engine) -> None:
        """Tell of this engine, too."""
        if hasattr(engine, "stats"):
            self.registry.register(_EngineCollector(engine))

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.registry)


class _EngineCollector:
    """The engine's counts as they stand now."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        return []  # nothing is asked of the engine at registration

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        yield _counter("epicrag_tokens", "Tokens of prompts and answers.", "kind", _tokens(stats))
        hits = {tier: getattr(stats, name) for tier, name in TIERS.items()}
        yield _counter("epicrag_chunk_hits", "Chunks, by where their KV came from.", "tier", hits)
        yield _gauge("epicrag_pool_pages", "Pages of KV memory.", "state", _pages(stats))
        queue = {"running": stats.running, "waiting": stats.waiting}
        yield _gauge("epicrag_queue", "Requests in the engine.", "state", queue)


def _tokens(stats: Stats) -> dict[str, int]:
    return {kind: getattr(stats, kind) for kind in TOKENS}


def _pages(stats: Stats) -> dict[str, int]:
    used = stats.pages - stats.pages_free - stats.pages_idle
    return {
        "free": stats.pages_free,
        "idle": stats.pages_idle,
        "used": used,
        "shared": stats.pages_shared,
        "pinned": stats.pages_pinned,
    }


def _counter(name: str, says: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, says, labels=[label])
    for value, n in values.items():
        family.add_metric([value], n)
    return family


def _gauge(name: str, says: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=[label])
    for value, n in values.items():
        family.add_metric([value], n)
    return family
