"""The clock stamps: arithmetic on known stamps, the host's path with a kernel that writes them, the tool's answers."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.cuda.decode import stamps
from tests.cuda.decode.emulated import Card, Launcher
from tests.cuda.decode.test_plan import MINIMAX
from xpu_moe import device
from xpu_moe.cuda import compiler, jit
from xpu_moe.cuda.decode import launch
from xpu_moe.cuda.decode.plan import BUCKETS, plan

SMALL = ["--hidden", "128", "--inter", "128", "--experts", "4", "--top-k", "2", "--calls", "5", "--replays", "3"]


def known(replays: int, calls: int, blocks: int) -> torch.Tensor:
    """Stamp 1 anywhere, the others at a known distance; the blocks of each launch in another order."""
    found = torch.zeros(replays, calls, blocks, stamps.PLACES, dtype=torch.int64)
    call, block = torch.arange(calls).view(-1, 1), torch.arange(blocks)
    processor = (block + call) % blocks
    found[..., 1] = 1 << 40 | processor * 1_000_000_000 + call * 20_000
    found[..., 0] = found[..., 1] - 300
    found[..., 2] = found[..., 1] + 600 + 10 * block
    found[..., 8] = found[..., 1] + 19_000
    found[..., 15] = 1024 + processor
    return found


# ---- arithmetic
def test_a_table_of_known_stamps():
    rows = stamps.summarise(known(2, 3, 5))
    assert [(row.stamp, row.mean, row.earliest, row.latest) for row in rows] == [
        (0, -300, -300, -300), (2, 620, 600, 640), (8, 19_000, 19_000, 19_000),
    ]  # fmt: skip
    assert [row.name for row in rows] == ["started", "routes sorted", "out stored"]


def test_earliest_and_latest_are_medians_over_launches():
    found = known(1, 3, 2)
    found[0, :, :, 2] = found[0, :, :, 1] + torch.tensor([[10, 20], [11, 90], [500, 600]])
    row = next(row for row in stamps.summarise(found) if row.stamp == 2)
    assert (row.earliest, row.latest) == (11, 90) and row.mean == pytest.approx(1231 / 6)


def test_blocks_and_launches_without_a_stamp_do_not_count():
    found = known(1, 3, 4)
    found[..., 11] = 0
    found[0, 0, 1, 11] = found[0, 0, 1, 1] + 5  # one block of one launch
    found[0, 1, 2, 11] = found[0, 1, 2, 1] + 7
    found[0, 1, 3, 11] = found[0, 1, 3, 1] + 9
    found[0, 0, 0, 1] = 0  # a block that does not know when the launch before was over
    row = next(row for row in stamps.summarise(found) if row.stamp == 11)
    assert (row.mean, row.earliest, row.latest) == (7, 5, 5)
    assert next(row for row in stamps.summarise(found) if row.stamp == 0).mean == -300
    assert stamps.summarise(torch.zeros_like(found)) == ()


def test_the_gap_follows_a_multiprocessor_from_launch_to_launch():
    assert stamps.gap(known(2, 4, 5)) == 20_000 - 300 - 19_000


def test_the_gap_leaves_out_blocks_without_a_predecessor():
    found = known(1, 2, 3)
    found[0, 1, :, 15] = torch.tensor([1024 + 2, 1024 + 77, 0])  # processor 2 again, a new one, not known
    found[0, 1, 0, 0] = found[0, 0, 2, 8] + 123
    assert stamps.gap(found) == 123
    found[..., 15] = 0
    assert stamps.gap(found) is None
    assert stamps.gap(known(2, 1, 3)) is None


def test_every_stamp_of_the_kernels_has_a_name_and_no_other():
    headers = Path(launch.__file__).parent.glob("*.cuh")
    written = {int(n) for file in headers for n in re.findall(r"\bstamp\(p, (\d+)", file.read_text())}
    assert written == stamps.NAMES.keys() | {stamps.ORIGIN}


# ---- the host's path, with a kernel on the CPU that only writes stamps
class Kernel:
    """Writes `known` stamps behind the two buffers of each launch's state, where state.cuh would."""

    def __init__(self):
        self.launches = []

    def launch(self, grid, block, *arguments, **keywords):
        state, half = arguments[9:11]
        order = [launched[9] for launched in self.launches]
        call = order.index(state) if state in order else len(order)
        written = known(1, call + 1, grid[0])[0, call].contiguous()
        ctypes.memmove(state + 256 + 2 * half, written.data_ptr(), written.nbytes)
        if state not in order:
            self.launches.append(arguments)
        self.programmatic = keywords["programmatic"]


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1.5


@pytest.fixture
def kernel(monkeypatch):
    """No card: a processor of 6 multiprocessors whose graphs replay nothing."""
    fake, cuda = Kernel(), torch.cuda
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)

    def load(unit, name, signature, index):
        assert (name, signature, dict(unit.defines)["TRACE"]) == ("moe_decode", launch._SIGNATURE, 1)
        return fake

    monkeypatch.setattr(jit, "load", load)
    monkeypatch.setattr(jit, "stream", lambda device: 7)
    monkeypatch.setattr(cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=6))
    monkeypatch.setattr(cuda, "Stream", lambda: stream)
    monkeypatch.setattr(cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(cuda, "stream", lambda which: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(cuda, "graph", lambda graph, stream, capture_error_mode: contextlib.nullcontext())
    monkeypatch.setattr(cuda, "Event", Event)
    monkeypatch.setattr(stamps.timing, "WARM_S", 0.0)
    monkeypatch.setattr(stamps, "no_card", lambda: "")
    monkeypatch.setattr(stamps, "trace", partial(stamps.trace, kind="cpu"))
    return fake


@pytest.mark.parametrize("scheme", ("u4", "fp8"))
@pytest.mark.parametrize("tokens", (2, 5))
def test_the_tool_traces_with_a_state_for_each_call(kernel, capsys, scheme, tokens):
    assert stamps.main(["--scheme", scheme, "--tokens", str(tokens), *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("rows") == [
        {"stamp": 0, "name": "started", "mean": -300, "earliest": -300, "latest": -300},
        {"stamp": 2, "name": "routes sorted", "mean": 625, "earliest": 600, "latest": 650},
        {"stamp": 8, "name": "out stored", "mean": 19_000, "earliest": 19_000, "latest": 19_000},
    ]
    took = found.pop("took")
    assert took["us"] == pytest.approx(1500 / (stamps.BURST * 5)) and took["rounds"] == 3
    assert found == {
        "ok": True, "scheme": scheme, "tokens": tokens, "hidden_size": 128, "intermediate_size": 128,
        "num_experts": 4, "top_k": 2, "max_tokens": 4 if tokens == 2 else 16, "blocks": 6, "calls": 5, "replays": 3,
        "gap": 700,
    }  # fmt: skip
    assert kernel.programmatic and len(kernel.launches) == 5
    for place in (0, 6, 7, 9):  # x, ids, weights and the state are each call's own
        assert len({launched[place] for launched in kernel.launches}) == 5
    assert len({launched[2] for launched in kernel.launches}) == 2, "layers take turns"
    assert all((launched[1] != 0) == (scheme == "fp8") and launched[11] == tokens for launched in kernel.launches)


def test_the_table_says_what_was_traced_and_that_stamps_cost_time(kernel, capsys):
    assert stamps.main(SMALL) == 0
    text = capsys.readouterr().out
    assert "u4, M 1 (variant for 1), H 128, I 128, E 4, top_k 2, 6 blocks: 10.00 us a call" in text
    assert "they cost time" in text and "medians over 3 launches of 3 replays" in text
    assert re.search(r"^ 2 routes sorted +625 +600 +650$", text, re.M)
    assert re.search(r"^ 8 out stored +19,000 +19,000 +19,000$", text, re.M)
    assert "next launch begins on this multiprocessor: 700 clocks after out is stored" in text
    assert "W13" not in text


def test_one_token_of_a_layer_too_large_for_its_kernel_is_traced_in_the_next_variant(kernel, capsys):
    assert stamps.main([*SMALL, "--hidden", "512", "--inter", "1536"]) == 0
    assert "u4, M 1 (variant for 4), H 512, I 1536" in capsys.readouterr().out and len(kernel.launches) == 5


def test_a_kernel_without_stamps_is_an_error(kernel, monkeypatch, capsys):
    monkeypatch.setattr(Kernel, "launch", lambda *arguments, **keywords: None)
    assert stamps.main(SMALL) == 1
    assert capsys.readouterr().err.endswith("stamps: the kernel left no stamps\n")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ("u4", "fp8"))
@pytest.mark.parametrize("tokens", (1, 2, 5))
def test_the_real_kernels_leave_every_stamp_in_an_order_that_makes_sense(kernel, monkeypatch, capsys, scheme, tokens):
    """Their source, emulated; its clock counts turns, not time."""
    card = Card()

    def load(unit, name, signature, index):
        shape = stamps.shape_of(stamps._parser().parse_args([*SMALL, "--scheme", scheme]))
        return Launcher(card, plan(shape, dict(unit.defines)["MAX_M"], 6), unit)

    monkeypatch.setattr(jit, "load", load)
    monkeypatch.setattr(jit, "stream", lambda device: 0)
    assert stamps.main(["--scheme", scheme, "--tokens", str(tokens), *SMALL, "--json"]) == 0
    means = {row["stamp"]: row["mean"] for row in json.loads(capsys.readouterr().out)["rows"]}
    few = {5, 11, 12, 13} if tokens < 5 else set()  # columns are tokens
    assert means.keys() - {11} == {0, 2, 3, 4, 6, 7, 8, 9, 10, 14} | few - {11}
    assert means[0] < 0 < means[2] < means[3] < means[4] < means[7] < means[8]
    assert means[4] <= means[6] < means[7] and means[9] < means[10]


# ---- what it refuses
def test_no_card_is_an_answer(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert stamps.main(["--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"ok": False, "cannot": "no NVIDIA card: the kernels run on Hopper (sm_90)"}
    assert printed.err == "stamps: no NVIDIA card: the kernels run on Hopper (sm_90)\n"


def test_another_card_is_named(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device, "architecture", lambda kind: "sm_80")
    assert stamps.main([]) == 2
    assert capsys.readouterr().err == "stamps: the card is sm_80: the kernels run on Hopper (sm_90)\n"


@pytest.mark.parametrize(
    "arguments, words",
    (
        (["--tokens", "65"], "--tokens: got 65, wanted a whole number from 1 to 64"),
        (["--tokens", "0"], "--tokens: got 0, wanted a whole number from 1 to 64"),
        (["--top-k", "9", "--experts", "8"], "--top-k: got 9, wanted a whole number from 1 to 8"),
        (["--calls", "3"], "--calls: got 3, wanted a whole number from 4 to 256"),
        (["--replays", "0"], "--replays: got 0, wanted a whole number from 1 to 100"),
        (["--inter", "-1"], "--inter: got -1, wanted"),
        (["--hidden", "0"], "--hidden: got 0, wanted"),
        (["--experts", "0"], "--experts: got 0, wanted"),
    ),
)
def test_arguments_out_of_bounds_are_named(arguments, words, capsys):
    assert stamps.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"stamps: {words}")


def test_sizes_that_no_kernel_has_are_named(kernel, capsys):
    assert stamps.main(["--inter", "192"]) == 2
    assert capsys.readouterr().err.endswith("stamps: intermediate_size 192: wanted a multiple of 128\n")
    with pytest.raises(SystemExit, match="2"):
        stamps.main(["--scheme", "int8"])


# ---- the variant
def test_only_the_traced_variant_has_the_define():
    chosen = plan(MINIMAX, 4, 132)
    plain, traced = launch.unit(chosen), launch.unit(chosen, trace=True)
    assert dict(traced.defines) == {**dict(plain.defines), "TRACE": 1} and "TRACE" not in dict(plain.defines)
    assert plain.key("sm_90a") != traced.key("sm_90a")


@pytest.mark.skipif(not compiler.available(), reason="neither NVRTC nor nvcc is installed here")
@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
def test_the_traced_variants_compile_for_hopper(bits):
    shape = dataclasses.replace(MINIMAX, bits=bits, scale="float16" if bits == 4 else "float32")
    for tokens in BUCKETS:
        chosen = plan(shape, tokens, 132)
        code = compiler.compile_now(launch.unit(chosen, trace=True), "sm_90a")
        assert code[:4] == b"\x7fELF" and b"moe_decode" in code
        assert code != compiler.compile_now(launch.unit(chosen), "sm_90a"), "the stamps are in it"


@pytest.mark.skipif(
    not torch.cuda.is_available() or device.architecture("cuda") != "sm_90", reason="needs a Hopper card (sm_90)"
)
@pytest.mark.parametrize("scheme", ("u4", "fp8"))
@pytest.mark.parametrize("tokens", (1, 16))
def test_stamps_of_the_card_follow_one_another(scheme, tokens, capsys):
    sizes = ["--hidden", "3072", "--inter", "384", "--experts", "16", "--top-k", "4"]
    assert stamps.main(["--scheme", scheme, "--tokens", str(tokens), *sizes, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    mean = {row["stamp"]: row["mean"] for row in found["rows"]}
    missing = {5, 11, 12, 13} if tokens == 16 else set()  # state.cuh: where columns are tokens
    assert mean.keys() == stamps.NAMES.keys() - missing
    assert mean[0] < mean[2] < mean[3] < mean[4] < mean[7] < mean[8] < 1e6
    assert mean[9] < mean[3] and mean[6] < mean[7] and found["gap"] > 0
