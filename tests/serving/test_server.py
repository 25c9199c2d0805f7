"""What a user sees: vLLM's OpenAI server with the plugin, asked by OpenAI's own client, at tp 1 and tp 2.

The reference is stock vLLM on the dequantised twin at tp 1, in process. Float32 activations (see test_engine).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.serving import checkpoints, offline
from tests.serving.checkpoints import PROMPTS, TOKENS, TOLERANCE
from tests.serving.compare import assert_same_tokens, largest_difference
from tests.serving.server import serving
from xpu_moe.serving.options import Options

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

MODEL, TEXT = "tiny", "Hello world, this is"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def int4(folder):
    return checkpoints.make(folder, "int4 with spaces")


@pytest.fixture(scope="module")
def twin(folder, int4):
    """Stock vLLM on the twin at tp 1: {"logprobs", "tokens", "best"}."""
    job = {"name": "twin", "model": str(checkpoints.twin(int4)), "prompts": PROMPTS, "tokens": TOKENS}
    (folder / "jobs.json").write_text(json.dumps([job]))
    command = [sys.executable, offline.__file__, str(folder / "jobs.json"), str(folder / "results.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return json.loads((folder / "results.json").read_text())["twin"]


def client(server):
    from openai import DefaultHttpxClient, OpenAI

    direct = DefaultHttpxClient(trust_env=False, timeout=120)  # the server is on this machine: no proxy
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0, http_client=direct)


def ask(server) -> dict:
    """The same questions as `offline.run` asks, over HTTP."""
    asked = client(server)
    got: dict[str, list] = {"logprobs": [], "tokens": []}
    for prompt in PROMPTS:
        done = asked.completions.create(
            model=MODEL, prompt=prompt, max_tokens=TOKENS, temperature=0, logprobs=2,
            extra_body={"prompt_logprobs": 0, "return_token_ids": True, "ignore_eos": True},
        ).choices[0]  # fmt: skip
        got["logprobs"].append([at[str(i)]["logprob"] for i, at in zip(prompt[1:], done.prompt_logprobs[1:])])
        got["tokens"].append(done.token_ids)
    return got


def assert_equals(got: dict, reference: dict) -> None:
    assert largest_difference(got["logprobs"], reference["logprobs"]) < TOLERANCE
    assert_same_tokens(got["tokens"], reference["tokens"], reference["best"], TOLERANCE)


def test_int4_at_tp1_compiled_with_openais_client(folder, int4, twin):
    """vLLM's default on a CPU (the layer traced once by Dynamo), the launcher's --additional-config, every API."""
    config = json.dumps(Options().additional_config())
    with serving(int4, folder / "tp1", "--dtype", "float32", "--additional-config", config) as server:
        assert_equals(ask(server), twin)
        told = server.told()
        assert (told["backend"], told["workers"], told["world_size"]) == ("cpu_grouped", 1, 1)
        assert told["fingerprint"] == Options().fingerprint()
        _every_api(server)
        rate = _decode_rate(server)
    assert rate >= 20, f"{rate:.1f} tok/s"


def _every_api(server) -> None:
    asked = client(server)
    plain = asked.completions.create(model=MODEL, prompt=TEXT, max_tokens=16, temperature=0)
    streamed = asked.completions.create(model=MODEL, prompt=TEXT, max_tokens=16, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in streamed) == plain.choices[0].text
    messages = [{"role": "user", "content": "hi"}]
    chat = asked.chat.completions.create(model=MODEL, messages=messages, max_tokens=12, temperature=0)
    pieces = asked.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for piece in pieces:
        usage = piece.usage or usage
        text += "".join(choice.delta.content or "" for choice in piece.choices)
    assert text == chat.choices[0].message.content and usage.completion_tokens == chat.usage.completion_tokens
    assert chat.usage.completion_tokens > 0


def _decode_rate(server) -> float:
    """Tokens a second of one stream, between the first and the last."""
    asked = client(server)
    pieces = asked.completions.create(
        model=MODEL, prompt=TEXT, max_tokens=128, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    times = [time.monotonic() for _ in pieces]
    return (len(times) - 1) / (times[-1] - times[0])


def test_int4_at_tp2_with_the_fused_query_key_norm(folder, int4, twin):
    config = json.dumps(Options(hooks=("auto", "qk_norm")).additional_config())
    arguments = ("--dtype", "float32", "--enforce-eager", "--additional-config", config)
    with serving(int4, folder / "tp2", *arguments, tp=2) as server:
        assert_equals(ask(server), twin)
        told = server.told()
    assert (told["backend"], told["workers"], told["world_size"]) == ("cpu_grouped", 2, 2)
    assert {"cpu_router", "qk_norm"} <= set(told["hooks"])
    assert any(note.startswith("query/key norm: allreduce_qk_rms(") for note in told["notes"]), told["notes"]
    moe = next(layer for layer in told["layers"] if layer["kind"] == "moe_int4")
    assert "I128" in moe["case"], "half of the experts' width a rank"


def test_bf16_weights_at_tp2_equal_tp1(folder, int4, twin):
    with serving(checkpoints.twin(int4), folder / "bf16", "--dtype", "float32", "--enforce-eager", tp=2) as server:
        assert_equals(ask(server), twin)
        assert server.told()["layers"] == []
