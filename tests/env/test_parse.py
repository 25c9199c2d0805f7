"""What would the library make of this value? The traps that people fall into, one a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_moe.env.parse import interpret, stream_number

TAKEN = [
    # oneCCL numbers: leading digits, the rest ignored, no error
    ("CCL_TOPO_P2P_ACCESS", "true", "0", True),
    ("CCL_TOPO_P2P_ACCESS", "1", "1", False),
    ("CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD", "4G", "4", True),
    ("CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD", "1e9", "1", True),
    ("CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD", "524288", "524288", False),
    ("CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD", " 12", "12", False),
    ("CCL_WORKER_COUNT", "", "0", True),
    ("CCL_WORKER_COUNT", "-1", "-1", False),
    # oneCCL booleans: 0 or 1, else it stops
    ("CCL_ZE_CACHE", "1", "1", False),
    ("CCL_ZE_CACHE", "true", None, True),
    ("CCL_ENABLE_SYCL_KERNELS", "on", None, True),
    # enums in any case; a typo stops
    ("CCL_ZE_IPC_EXCHANGE", "PIDFD", "pidfd", False),
    ("CCL_ZE_IPC_EXCHANGE", "pid_fd", None, True),
    ("CCL_ATL_TRANSPORT", "tcp", None, True),
    # algorithms, with ranges
    ("CCL_ALLREDUCE", "ring", "ring", False),
    ("CCL_ALLREDUCE", "ring:0-8192;topo:8193-max", "ring:0-8192;topo:8193-max", False),
    ("CCL_ALLREDUCE", "fastest", None, True),
    # vLLM: bool(int(…)), and one that takes true
    ("VLLM_XPU_ENABLE_XPU_GRAPH", "1", "1", False),
    ("VLLM_XPU_ENABLE_XPU_GRAPH", "true", None, True),
    ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "true", "1", False),
    ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "yes", "0", True),
    ("VLLM_WORKER_MULTIPROC_METHOD", "Spawn", None, True),
    ("VLLM_RPC_TIMEOUT", "10s", None, True),
    # torch, NCCL, Level Zero, Unified Runtime
    ("TORCH_XCCL_BLOCKING_WAIT", "yes", "1", False),
    ("TORCH_XCCL_BLOCKING_WAIT", "on", None, True),
    ("NCCL_P2P_DISABLE", "true", "0", True),
    ("NCCL_P2P_DISABLE", "0x1", "1", False),
    ("NCCL_CUMEM_ENABLE", "010", "8", True),
    ("ZES_ENABLE_SYSMAN", "true", "0", True),
    ("UR_L0_USE_IMMEDIATE_COMMANDLISTS", "2x", "2", True),
    # text goes through
    ("FI_PROVIDER", "tcp", "tcp", False),
    ("NOBODY_KNOWS_THIS", "x", "x", False),
]


@pytest.mark.parametrize("name,value,taken,said", TAKEN)
def test_a_value_is_read_as_its_library_reads_it(name, value, taken, said):
    reading = interpret(name, value)
    assert reading.taken == taken
    assert bool(reading.says) is said
    assert reading.fatal is (taken is None)


def test_the_message_lists_what_is_expected():
    assert interpret("CCL_ZE_CACHE", "on").says.endswith("expected values: 0, 1")
    assert "pidfd, drmfd, sockets" in interpret("CCL_ZE_IPC_EXCHANGE", "shm").says


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", "G", " x", ".5", "e9", "true"]))
def test_a_stream_reads_leading_digits(number, rest):
    assert stream_number(f"{number}{rest}") == number


@given(st.text())
def test_no_text_breaks_a_reader(text):
    for name in ("CCL_WORKER_COUNT", "CCL_ZE_CACHE", "CCL_ALLREDUCE", "NCCL_P2P_DISABLE", "VLLM_USE_V1"):
        assert interpret(name, text).given == text


OURS = [
    # the launcher's and our own: refused, not taken as text
    ("TP", "4", "4", ""),
    ("TP", "", "", ""),
    ("TP", "abc", None, "wanted a whole number of at least 1, digits only"),
    ("NUM_PROMPTS", "0", None, "wanted a whole number of at least 1, digits only"),
    ("DTYPE", "float16", "float16", ""),
    ("DTYPE", "fp16", None, "accepted values are auto, half, float16, bfloat16, float, float32"),
    ("XPU_MOE_CHECK", "yes", "1", ""),
    ("XPU_MOE_CHECK", "maybe", None, "wanted 1 or 0 (or true/false, yes/no, on/off)"),
    ("XPU_MOE_STALL_LIMIT", "abc", None, "wanted a whole number, digits only"),
    ("RANK", "x", None, "its reader calls int(): 'x' raises ValueError; write 0 or 1, or plain digits"),
]


@pytest.mark.parametrize(("name", "given", "taken", "says"), OURS)
def test_what_we_read_ourselves_is_read_as_our_tools_read_it(name, given, taken, says):
    assert (interpret(name, given).taken, interpret(name, given).says) == (taken, says)


def test_the_launcher_and_the_registry_agree():
    from xpu_moe.launch.settings import ROWS

    for row in (row for row in ROWS if row.env and row.env != "XPU_MOE_BACKEND"):
        for value in ("1", "12", "0", "-1", "x", "1k", "auto", "float16", "half", "float64", "pidfd", "drmfd", "²"):
            try:
                row.parse(value)
                refused = False
            except ValueError:
                refused = True
            assert interpret(row.env, value).fatal is refused, (row.env, value)
