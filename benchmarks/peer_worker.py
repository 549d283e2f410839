"""One engine to be compared with, run by its own interpreter and asked in JSON lines. Standard library only.

    python peer_worker.py NAME < requests > replies

Requests, each answered by one line: {"op": "load", "model": folder, "gguf": file or null, "threads": n,
"context": tokens}, {"op": "first", "ids": [...]} for the seconds to the first token, and
{"op": "decode", "ids": [...], "n": n} for the tokens per second behind it. What cannot be done is answered
with {"error": why}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, TextIO


class Peer(Protocol):
    """What a peer must be able to do."""

    def load(self, model: str, gguf: str | None, threads: int, context: int) -> str:
        """Load the model; return what is running: name, release, number format."""
        ...

    def generate(self, ids: list[int], n: int) -> None:
        """Compute the prompt, as far as no cache has it, and exactly `n` tokens, greedily."""
        ...


class Transformers:
    """`generate` of transformers, float32. It keeps nothing from one call to the next."""

    def load(self, model: str, gguf: str | None, threads: int, context: int) -> str:
        torch, transformers = (importlib.import_module(n) for n in ("torch", "transformers"))
        torch.set_num_threads(threads)
        self._torch = torch
        load = transformers.AutoModelForCausalLM.from_pretrained
        self._model = load(model, dtype=torch.float32, local_files_only=True).eval()
        return f"transformers {transformers.__version__}, float32"

    def generate(self, ids: list[int], n: int) -> None:
        with self._torch.inference_mode():
            self._model.generate(
                self._torch.tensor([ids]),
                attention_mask=self._torch.ones(1, len(ids), dtype=self._torch.long),
                max_new_tokens=n,
                min_new_tokens=n,
                do_sample=False,
            )


class LlamaCpp:
    """llama-cpp-python, whose context keeps the longest prefix that the next prompt shares with it."""

    def load(self, model: str, gguf: str | None, threads: int, context: int) -> str:
        if gguf is None:
            raise ValueError("it needs a GGUF file (--gguf)")
        llama_cpp = importlib.import_module("llama_cpp")
        self._llama = llama_cpp.Llama(
            gguf, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        return f"llama-cpp-python {llama_cpp.__version__}, {os.path.basename(gguf)}"

    def generate(self, ids: list[int], n: int) -> None:
        for count, _ in enumerate(self._llama.generate(ids, temp=0.0), 1):
            if count == n:
                return


class Vllm:
    """vLLM with automatic prefix caching, float32."""

    def load(self, model: str, gguf: str | None, threads: int, context: int) -> str:
        vllm = importlib.import_module("vllm")
        self._sampling = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=model,
            dtype="float32",
            max_model_len=context,
            enable_prefix_caching=True,
            max_num_seqs=1,
        )
        return f"vllm {vllm.__version__}, float32"

    def generate(self, ids: list[int], n: int) -> None:
        sampling = self._sampling(max_tokens=n, temperature=0.0, ignore_eos=True)
        self._llm.generate([{"prompt_token_ids": ids}], sampling, use_tqdm=False)


class Pretended:
    """For tests: the longest prefix of the last prompt costs nothing, every other token a tick."""

    tick = 1e-4

    def load(self, model: str, gguf: str | None, threads: int, context: int) -> str:
        if model == "broken":
            raise ValueError("it is broken")
        self._last: list[int] = []
        print("chatter on stdout")
        return "pretended 1.0"

    def generate(self, ids: list[int], n: int) -> None:
        pairs = enumerate(zip(ids, self._last, strict=False))
        known = next((i for i, (a, b) in pairs if a != b), min(len(ids), len(self._last)))
        self._last = ids
        time.sleep(self.tick * (len(ids) - known + n))


PEERS: dict[str, type[Peer]] = {
    "transformers": Transformers,
    "llama-cpp": LlamaCpp,
    "vllm": Vllm,
    "pretended": Pretended,
}


def answer(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks; whatever goes wrong is the answer."""
    try:
        if request["op"] == "load":
            given = {key: request[key] for key in ("model", "gguf", "threads", "context")}
            return {"what": peer.load(**given)}
        if request["op"] == "first":
            return {"seconds": _timed(peer, request["ids"], 1)}
        if request["op"] == "decode":
            return {"rate": _rate(peer, request["ids"], request["n"])}
        return {"error": f"unknown op {request['op']!r}"}
    except Exception as error:  # noqa: BLE001 - the asking side reports it
        first_line = (str(error).splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {first_line}"}


def _timed(peer: Peer, ids: list[int], n: int) -> float:
    began = time.perf_counter()
    peer.generate(ids, n)
    return time.perf_counter() - began


def _rate(peer: Peer, ids: list[int], n: int) -> float:
    """Tokens per second behind the first, once the prompt is known to whatever cache there is."""
    peer.generate(ids, 1)
    one = _timed(peer, ids, 1)
    return n / max(_timed(peer, ids, n + 1) - one, 1e-9)


def serve(peer: Peer, requests: TextIO, replies: TextIO) -> None:
    for line in _lines(requests):
        replies.write(json.dumps(answer(peer, json.loads(line))) + "\n")
        replies.flush()


def _lines(stream: TextIO) -> Iterator[str]:
    while line := stream.readline():
        yield line


def main() -> None:
    # What libraries print must not stand among the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(PEERS[sys.argv[1]](), sys.stdin, replies)


if __name__ == "__main__":
    main()
