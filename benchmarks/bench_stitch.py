"""How long it takes to stitch a prompt of cached chunks: plan, policy and page tables, no model.

Engines are made of random weights: a tiny one, and one with the key and value geometry of SmolLM2-135M. The chunks
of a 32k-token prompt are made resident without being computed, since stitching reads no key and no value.
Texts are tokenised once before, and everything from the link pass on is left out; `whole` adds to stitch and
policy that chunks are found by their keys and pinned. Prints a table, and a line of JSON.

    python benchmarks/bench_stitch.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from epicrag.serving.engine import Engine
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import Piece, Prompt

SHAPES = {
    "tiny": {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
    },
    "smollm2-135m": {
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
}


def make_engine(folder: Path, shape: dict[str, int], tokens: int) -> Engine:
    """An engine over random weights, with a pool for `tokens` tokens; its tokenizer gives each text its own ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(_alphabet())}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="!").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=shape["num_attention_heads"] * 8,
        intermediate_size=48,
        max_position_embeddings=2 * tokens,
        bos_token_id=None,
        eos_token_id=0,
        **shape,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    row = 2 * 4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    return Engine.load(
        folder,
        name="random",
        device="cpu",
        dtype="float32",
        kv_memory_bytes=2 * tokens * row,
        self_check=False,
    )


def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def prompt_of(engine: Engine, tokens: int, chunk: int) -> Prompt:
    """A prompt of `tokens` cached tokens in chunks of `chunk`, all of them resident."""
    pieces = [Piece(f"{n:06d}" * (chunk // 6 + 1)) for n in range(tokens // chunk)]
    pieces = [Piece(piece.text[:chunk]) for piece in pieces]
    known = {piece.text: engine.tokenizer.ids(piece.text) for piece in pieces}
    right = engine.tokenizer.ids
    engine.tokenizer.ids = lambda text: known.get(text) or right(text)  # type: ignore[method-assign]
    for piece in pieces:
        assert len(known[piece.text]) == chunk
        engine.pool.adopt(engine.key_of(piece), engine.pool.allocate(chunk), chunk)
    return Prompt("where is it?", tuple(pieces))


def measure(engine: Engine, prompt: Prompt, policy: str, repeats: int) -> dict[str, float]:
    """Milliseconds: median and best of the whole, and of `select` + `stitch`, as a receipt names them.

    `cpu` is the thread's own time in the whole: what a busy machine changes least.
    """
    chosen = parse_policy(policy)
    wholes, parts, cpu = [], [], []
    for _ in range(repeats):
        start, begun = time.perf_counter(), time.thread_time()
        stitched = engine.stitched(prompt, chosen)
        cpu.append((time.thread_time() - begun) * 1000)
        wholes.append((time.perf_counter() - start) * 1000)
        parts.append(stitched.select_ms + stitched.stitch_ms)
        stitched.close()
    return {
        "whole": round(statistics.median(wholes), 2),
        "whole_best": round(min(wholes), 2),
        "stitch_policy": round(statistics.median(parts), 2),
        "stitch_policy_best": round(min(parts), 2),
        "cpu": round(statistics.median(cpu), 2),
        "cpu_best": round(min(cpu), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--policy", default="legolink(16)+correct(0.25)")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    results = []
    print(f"{args.tokens:,} cached tokens, {args.policy}: milliseconds, {args.repeats} repeats")
    print(f"{'':>21} {'whole':>17} {'stitch + policy':>17} {'cpu of whole':>17}")
    print(f"{'model':>14} {'chunk':>6} " + f" {'median':>8} {'best':>8}" * 3)
    for name, shape in SHAPES.items():
        for chunk in (128, 512, 1024):
            with tempfile.TemporaryDirectory() as folder:
                engine = make_engine(Path(folder), shape, args.tokens)
                row = measure(
                    engine, prompt_of(engine, args.tokens, chunk), args.policy, args.repeats
                )
            print(f"{name:>14} {chunk:>6} " + " ".join(f"{ms:>8.2f}" for ms in row.values()))
            results.append({"model": name, "chunk": chunk, **row})
    print(json.dumps({"tokens": args.tokens, "policy": args.policy, "results": results}))


if __name__ == "__main__":
    main()
