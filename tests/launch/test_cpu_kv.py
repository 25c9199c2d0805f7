"""The KV cache on a CPU: from the model and from what is free, unless the user decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.launch.test_checks import MINIMAX, folder, plan_of
from xpu_moe import host_memory
from xpu_moe.launch import model
from xpu_moe.launch.cpu_kv import Asked, plan

GIB = 1 << 30
KV = "--kv-cache-memory-bytes"
# 248 KiB a token, as MiniMax-M2 has at TP 1
ASKED = Asked(token=253952, block=128, length=4096, named=False, sequences=4, left=64 * GIB, free=100 * GIB)


@pytest.fixture
def small(tmp_path):
    """MiniMax's fields, two layers and few experts, 8 KiB a token."""
    sizes = {"num_hidden_layers": 2, "num_local_experts": 8, "hidden_size": 256, "vocab_size": 2048}
    more = sizes | {"intermediate_size": 256, "max_position_embeddings": 8192}
    return model.check(str(folder(tmp_path / "small", MINIMAX | more)))


def test_a_few_sequences_of_the_models_length():
    found = plan(ASKED)
    assert (found.sequences, found.length) == (4, 4096)
    assert found.size == (4 * 32 + 1) * 128 * ASKED.token  # and the block that vLLM keeps
    assert plan(replace(ASKED, sequences=2)).size == (2 * 32 + 1) * 128 * ASKED.token


@pytest.mark.parametrize("left", [1, 4, 8, 17, 64, 300])
@pytest.mark.parametrize("length", [1, 1000, 40_960, 196_608])
def test_never_more_than_a_quarter_and_the_length_that_is_said_fits(left, length):
    asked = replace(ASKED, left=left * GIB, length=length)
    found = plan(asked)
    assert 0 < found.size <= asked.left // 4
    assert found.size // (128 * asked.token) > -(-found.length // 128) * found.sequences - 1
    assert found.length == length or found.sequences == 1


def test_a_length_that_the_user_named_stays():
    asked = replace(ASKED, named=True, length=131_072, left=70 * GIB)  # 31 GiB a sequence: over a quarter, under half
    assert (plan(asked).length, plan(asked).sequences) == (131_072, 1)
    found = plan(replace(asked, left=40 * GIB))
    assert found.size == 0 and "too little for 131072 tokens (--max-model-len " in found.why
    most = int(found.why.rpartition(" (--max-model-len ")[2].split()[0])
    assert plan(replace(asked, left=40 * GIB, length=most)).size > 0


def test_weights_that_leave_nothing_are_told():
    found = plan(replace(ASKED, left=-GIB))
    assert found.size == 0 and "the weights leave 0 bytes a rank of the 100.00 GiB" in found.why


def test_the_plan_reaches_the_command_and_says_so(small, monkeypatch):
    monkeypatch.setattr(host_memory, "available", lambda: 16 * GIB)
    found = plan_of(small)
    setting = found.settings["kv_cache_memory_bytes"]
    token = 2 * 2 * 8 * 128 * 2  # layers, K and V, heads, head_dim, bytes
    assert setting.value == (4 * 64 + 1) * 128 * token and setting.origin == "plan for the CPU"
    assert found.command[found.command.index(KV) + 1] == str(setting.value)
    assert "--max-model-len" not in found.command
    (said,) = (note for note in found.notes if note.startswith("KV plan"))
    assert said.startswith("KV plan for the CPU: 4 x 8192 tokens in ") and "16.00 GiB of memory are free" in said
    assert plan_of(small, "--dtype", "float").settings["kv_cache_memory_bytes"].value == 2 * setting.value
    named = plan_of(small, "--max-model-len", "128", "--max-num-seqs", "1", "--block-size", "32")
    assert named.settings["kv_cache_memory_bytes"].value == (4 + 1) * 32 * token


def test_a_length_that_does_not_fit_is_lowered_where_nobody_named_one(small, monkeypatch):
    monkeypatch.setattr(host_memory, "available", lambda: 120 << 20)
    found = plan_of(small)
    length = found.settings["max_model_len"]
    assert 128 <= length.value < 8192 and length.origin == "plan for the CPU"
    assert found.command[found.command.index("--max-model-len") + 1] == str(length.value)


@pytest.mark.parametrize(
    ("argv", "environ", "value"),
    [
        ((KV, "256M"), {}, 256 << 20),
        (("--", "--gpu-memory-utilization", "0.5"), {}, None),
        (("--", "--gpu_memory_utilization=0.5"), {}, None),
        ((), {"VLLM_CPU_KVCACHE_SPACE": "2"}, None),
    ],
)
def test_what_the_user_gave_is_left_alone(small, argv, environ, value):
    found = plan_of(small, *argv, environ=environ)
    assert found.value("kv_cache_memory_bytes") == value
    assert not [note for note in found.notes if note.startswith("KV plan")]


def test_a_plan_that_does_not_fit_is_no_plan_and_is_told(small, monkeypatch):
    monkeypatch.setattr(host_memory, "available", lambda: 1 << 20)
    found = plan_of(small)
    assert KV not in found.command
    assert any(note.startswith("KV plan for the CPU: the weights leave") for note in found.notes)


def test_other_devices_and_unknown_memory_have_no_such_plan(small, monkeypatch):
    assert plan_of(small, kind="cuda").value("kv_cache_memory_bytes") is None
    monkeypatch.setattr(host_memory, "available", lambda: 0)
    assert plan_of(small).value("kv_cache_memory_bytes") is None and not plan_of(small).notes


def test_the_memory_limit_of_a_container_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "free_memory", lambda: 8 * GIB)
    assert host_memory.available(tmp_path) == 8 * GIB
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    for most, used, left in (("max", "5", 8 * GIB), (str(3 * GIB), str(GIB), 2 * GIB), ("1", "5", 0)):
        (group / "memory.max").write_text(most + "\n")
        (group / "memory.current").write_text(used + "\n")
        assert host_memory.available(tmp_path) == left
