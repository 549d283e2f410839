"""The README's table of model families, from the tiny random checkpoints that the tests run on.

    python benchmarks/families.py            # print the table
    python benchmarks/families.py --write    # put it into README.md

Each checkpoint is loaded by the engine, which proves what every layer does with positions and checks itself
against transformers; a prompt several times longer than the longest sliding window is then computed in full and
from stitched chunks that are all recomputed, and both must agree with transformers. `tests/serving/test_gates.py`
takes the same checkpoints through gates 1 to 7, and a test compares this table with the README.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epicrag.serving.engine import Engine

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- made by benchmarks/families.py -->\n"
END = "<!-- end -->\n"

ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Llama 2 and 3, SmolLM2", ("llama", "llama-linear", "llama-llama3", "llama-yarn")),
    ("Mistral", ("mistral", "mistral-yarn", "mistral-sliding")),
    ("Mixtral", ("mixtral",)),
    ("Qwen2, Qwen2.5", ("qwen2", "qwen2-yarn", "qwen2-sliding")),
    ("Qwen2-MoE", ("qwen2-moe",)),
    ("Qwen3", ("qwen3", "qwen3-yarn")),
    ("Qwen3-MoE", ("qwen3-moe",)),
    ("SmolLM3", ("smollm3",)),
    ("Phi-3", ("phi3", "phi3-sliding")),
    ("Phi-3 with LongRoPE", ("phi3-longrope",)),
    ("Gemma", ("gemma",)),
    ("Gemma 2", ("gemma2",)),
    ("Gemma 3 (text)", ("gemma3",)),
    ("DeepSeek-V2", ("deepseek-v2",)),
    ("DeepSeek-V3", ("deepseek-v3",)),
    ("GLM-4", ("glm",)),
    ("OLMo 2", ("olmo2",)),
    ("Granite", ("granite",)),
    ("Command R", ("cohere",)),
    ("any with dynamic NTK scaling", ("llama-dynamic",)),
    ("gpt-oss", ("gpt-oss",)),
    ("Llama 4", ("llama4",)),
    ("StableLM", ("stablelm",)),
    ("GPT-2", ("gpt2",)),
    ("BLOOM", ("bloom",)),
    ("Qwen3.5", ("qwen3.5",)),
    ("LFM2", ("lfm2",)),
    ("Mamba", ("mamba",)),
)


def table(engine_of: Callable[[str], Engine]) -> str:
    """The table in Markdown. `engine_of`: a checkpoint's name to an engine over it."""
    lines = ["| family | KV is reused | how its layers read |", "| --- | --- | --- |"]
    for title, names in ROWS:
        engines = [engine_of(name) for name in names]
        reasons = {engine.refusal.split(": ", 1)[1] for engine in engines if engine.refusal}
        if reasons:
            lines.append(f"| {title} | no | {'; '.join(sorted(reasons))} |")
            continue
        for engine in engines:
            accept(engine)
        lines.append(f"| {title} | yes | {_joined([described(engine) for engine in engines])} |")
    return "\n".join(lines) + "\n"


def _joined(notes: Sequence[list[str]]) -> str:
    """What all checkpoints of a family do, then what only some of them do."""
    every = [note for note in notes[0] if all(note in other for other in notes)]
    some = [note for note in dict.fromkeys(chain(*notes)) if note not in every]
    return "; ".join(every) + (f"; also {', '.join(some)}" if some else "")


def accept(engine: Engine) -> None:
    """AssertionError unless a long prompt, in full and stitched, gets the logits that transformers gives."""
    from epicrag.serving.policies import Full, LegoLink
    from epicrag.serving.prompt import Piece, Prompt

    pieces = tuple(
        Piece(f"{word} and the cat sat on the mat " * 2) for word in ("one", "two", "six")
    )
    asked = Prompt("where is the cat", pieces)
    ids = engine.lay_out(asked, 1).ids
    want = engine.model.plain_logits(ids, [len(ids) - 1])
    for policy in (Full(), LegoLink(len(ids))):
        with engine.stitched(asked, policy, mode="isolated") as stitched:
            got = stitched.linked.link()
        error = float((got - want).abs().max() / want.abs().max().clamp_min(1.0))
        assert error < 2e-4, f"{engine.name}: {policy.name} differs from transformers by {error}"


def described(engine: Engine) -> list[str]:
    """What the layers of a model do that Llama's do not, in words; nothing that was not read off the model."""
    geometry, layers = engine.model.geometry(), engine.model.kinds()
    of_layer = [layers.kinds[index] for index in layers.of_layer]
    turning = [kind.rotary for kind in layers.kinds if kind.rotary.dim]
    notes = ["interleaved RoPE" if turning[0].interleaved else "half-split RoPE"]
    if turning[0].dim < geometry.head_dim:
        notes.append(f"on the {'last' if turning[0].start else 'first'} part of each head")
    rope = getattr(engine.model.config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        notes.append(f"{rope['rope_type']} scaling")
    if len({tuple(rotary.inv_freq.tolist()) for rotary in turning}) > 1:
        notes.append("two sets of frequencies")
    if not all(kind.rotary.dim for kind in of_layer):
        notes.append("some layers without positions")
    if any(kind.window for kind in of_layer):
        every = all(kind.window for kind in of_layer)
        notes.append(f"sliding window in {'all' if every else 'some'} layers")
    if any(kind.softcap for kind in of_layer):
        notes.append("soft-capped scores")
    if geometry.value_dim != geometry.head_dim:
        notes.append("latent attention, cached expanded: exact, but as large as without it")
    return notes


def replaced(readme: str, new: str) -> str:
    """The README with the table in its place."""
    before, rest = readme.split(BEGIN)
    return before + BEGIN + new + END + rest.split(END, 1)[1]


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    parser = argparse.ArgumentParser(description="The README's table of model families.")
    parser.add_argument("--write", action="store_true", help="put it into README.md")
    options = parser.parse_args()
    from epicrag.serving.engine import Engine

    spec = importlib.util.spec_from_file_location("checkpoints", ROOT / "tests" / "conftest.py")
    assert spec and spec.loader
    checkpoints = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checkpoints)

    with tempfile.TemporaryDirectory() as folder:

        def engine_of(name: str) -> Engine:
            path = checkpoints.make_model(Path(folder) / name, name)
            return Engine.load(
                path, name=name, dtype="float32", kv_dtype="float32", kv_memory_bytes=32 << 20
            )

        made = table(engine_of)
    if options.write:
        readme = ROOT / "README.md"
        text = replaced(readme.read_text(encoding="utf-8"), made)
        readme.write_text(text, encoding="utf-8")
    print(made, end="")


if __name__ == "__main__":
    main()
