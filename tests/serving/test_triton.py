"""The whole engine on the Triton kernels: in the interpreter here, and on a GPU where there is one."""

import pytest
import torch

from epicrag.kernels.choice import WISH
from epicrag.serving.engine import Engine
from epicrag.serving.policies import parse_policy
from epicrag.serving.prompt import Piece, Prompt
from epicrag.serving.sample import Sampling

pytest.importorskip("triton", reason="Triton is not installed")

TEXTS = ("the cat sat on the mat", "a dog said: 17 cats")
ASKED = Prompt("the cat", tuple(Piece(text) for text in TEXTS))


def logits(engine: Engine, policy: str, mode: str = "isolated") -> torch.Tensor:
    """Logits of the prompt's last token and of two fixed tokens after it."""
    with engine.stitched(ASKED, parse_policy(policy), mode=mode, n_new=2) as stitched:
        return torch.cat((stitched.linked.link(), stitched.linked.step([5, 6])))


@pytest.mark.parametrize(
    ("family", "policy"),
    [
        ("llama", "legolink(2)+correct(0.5)"),
        ("qwen3-yarn", "damp(2,3)+focus(0.2,1)"),
        ("glm", "none"),
        ("gemma2", "full"),
        ("deepseek-v2", "legolink(2)"),
    ],
)
def test_it_computes_what_the_cpu_kernels_compute(tiny_engine, monkeypatch, family, policy):
    engine = tiny_engine(family)
    want = logits(engine, policy)
    monkeypatch.setenv(WISH, "triton")
    got = logits(engine, policy)
    assert not torch.equal(got, want), "the same to the bit: were the Triton kernels run at all?"
    assert (got - want).abs().max() < 2e-4 * max(1.0, float(want.abs().max()))


def test_a_model_is_probed_checked_and_asked_on_them_alone(checkpoint, tmp_path, monkeypatch):
    """Nothing of the load may go around the chosen kernels, and KV in 8 bits is read by them."""
    monkeypatch.setenv(WISH, "triton")
    options = {"device": "cpu", "dtype": "float32", "kv_memory_bytes": 32 << 20}
    engine = Engine.load(checkpoint("llama"), name="llama", kv_dtype="int8", **options)
    assert engine.refusal is None
    with engine.stitched(ASKED, parse_policy("legolink(2)"), n_new=0) as stitched:
        got = stitched.linked.link()
        assert any(
            kept.runs[0].start >= engine.pool.n_rows for kept in engine.pool._residents.values()
        )
    monkeypatch.setenv(WISH, "reference")
    with engine.stitched(ASKED, parse_policy("legolink(2)"), n_new=0) as stitched:
        want = stitched.linked.link()
    assert (got - want).abs().max() < 2e-4 * max(1.0, float(want.abs().max()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("family", ["llama", "qwen3-yarn", "glm", "gemma2", "deepseek-v2"])
@pytest.mark.parametrize("kv_dtype", [None, "int8"])
def test_on_a_gpu_it_computes_what_the_cpu_computes(checkpoint, family, kv_dtype):
    options = {"dtype": "float32", "kv_memory_bytes": 32 << 20, "kv_dtype": kv_dtype}
    want, got = (
        logits(
            Engine.load(checkpoint(family), name=family, device=device, **options), "legolink(2)"
        )
        for device in ("cpu", "cuda")
    )
    assert (got.cpu() - want).abs().max() < 1e-3 * max(1.0, float(want.abs().max()))


def test_plain_torch_is_said_where_triton_was_asked_for_and_lacks_something(
    checkpoint, monkeypatch, caplog
):
    options = {"device": "cpu", "dtype": "float32", "kv_memory_bytes": 32 << 20}
    monkeypatch.setenv(WISH, "triton")
    monkeypatch.setattr("epicrag.kernels.choice.triton_lacks", lambda device: "a reason")
    monkeypatch.setattr("epicrag.kernels.ops.triton_lacks", lambda device: "a reason")
    with caplog.at_level("WARNING", "epicrag"):
        engine = Engine.load(checkpoint("llama"), name="llama", **options)
    assert "plain torch computes: a reason" in caplog.text
    assert engine.refusal is None


def test_the_reference_takes_no_decoder_of_our_own(checkpoint, monkeypatch):
    options = {"device": "cpu", "dtype": "float32", "kv_memory_bytes": 32 << 20}
    monkeypatch.setenv(WISH, "reference")
    engine = Engine.load(checkpoint("llama"), name="llama", **options)
    assert engine.model.forward_kind == f"transformers' modeling code: asked for by {WISH}"


def test_an_answer_that_is_given_up_has_taken_the_time_of_its_tokens(tiny_engine):
    engine = tiny_engine("llama")
    answer = engine.submit(ASKED, policy=parse_policy("none"), sampling=Sampling(max_tokens=50))
    for _, _ in zip(answer, range(3), strict=False):
        pass
    given_up = answer.receipt
    answer.close()
    assert given_up is not None
    assert given_up.ms.total > given_up.ms.first_token
