"""Launches against a driver that only takes notes: what reaches it, by the C launcher and by ctypes."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from xpu_moe.cuda import fastlaunch, jit

_ENQUEUE = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)


@pytest.fixture
def driver(monkeypatch):
    """Notes of every launch: grid, block, shared, stream, attribute ids, function, 8 bytes of each parameter."""
    notes: list[tuple] = []
    answer = SimpleNamespace(code=0)

    def enqueue(config_at, function, slots, _):
        config = jit._Config.from_address(config_at)
        addresses = (ctypes.c_void_p * 4).from_address(slots)
        values = [ctypes.c_uint64.from_address(address).value for address in addresses]
        ids = [config.attributes[i].id for i in range(config.count)]
        notes.append((tuple(config.grid), tuple(config.block), config.shared, config.stream, ids, function, values))
        return answer.code

    def error_string(code, text):
        return 0

    fake = SimpleNamespace(
        cuLaunchKernelEx=_ENQUEUE(enqueue), cuGetErrorString=error_string, notes=notes, answer=answer
    )
    monkeypatch.setattr(jit, "driver", lambda: fake)
    return fake


def kernel() -> jit.Kernel:
    return jit.Kernel(ctypes.c_void_p(77), "k", "PPiQ")


def test_a_launch_packs_its_arguments_and_its_attributes(driver):
    kernel().launch((3, 2), (32,), 5, 6, -1, 9, stream=123, programmatic=True)
    (note,) = driver.notes
    assert note == ((3, 2, 1), (32, 1, 1), 0, 123, [6], 77, [5, 6, 0xFFFFFFFF, 9])


def test_equal_shapes_share_a_launch_and_others_do_not(driver):
    one = kernel()
    for grid in ((1,), (2,), (1,)):
        one.launch(grid, (32,), 1, 2, 3, 4, stream=0)
    assert [note[0][0] for note in driver.notes] == [1, 2, 1] and len(one._launches) == 2


@pytest.mark.parametrize("fast", (True, False))
def test_a_fixed_launch_changes_its_pointers_only(driver, monkeypatch, fast):
    if fast and fastlaunch.launcher()[0] is None:
        pytest.skip(fastlaunch.launcher()[1])
    if not fast:
        monkeypatch.setattr(fastlaunch, "launcher", lambda: (None, "test"))
    call = kernel().bind((4,), (64,)).fixed(0, 2, 0, 0, 7, 8)
    call(11, 1, 2)
    call(12, 2**63 + 5, 4)
    assert [(note[3], note[6]) for note in driver.notes] == [(11, [1, 2, 7, 8]), (12, [2**63 + 5, 4, 7, 8])]


@pytest.mark.parametrize("fast", (True, False))
def test_a_refused_launch_names_kernel_and_shape(driver, monkeypatch, fast):
    if fast and fastlaunch.launcher()[0] is None:
        pytest.skip(fastlaunch.launcher()[1])
    if not fast:
        monkeypatch.setattr(fastlaunch, "launcher", lambda: (None, "test"))
    call = kernel().bind((4,), (64,)).fixed(0, 2, 0, 0, 7, 8)
    driver.answer.code = 1
    with pytest.raises(jit.DriverError, match=r"launch k grid \(4, 1, 1\) block \(64, 1, 1\) shared 0: CUDA error 1"):
        call(0, 1, 2)


def test_only_pointers_can_change(driver):
    with pytest.raises(ValueError, match="not all pointers"):
        kernel().bind((1,), (32,)).fixed(1, 3, 0, 0, 7, 8)


def test_the_c_launcher_counts_its_arguments(driver):
    if fastlaunch.launcher()[0] is None:
        pytest.skip(fastlaunch.launcher()[1])
    call = kernel().bind((1,), (32,)).fixed(0, 2, 0, 0, 7, 8)
    with pytest.raises(TypeError, match="got 2 arguments, wanted a stream and 2 pointers"):
        call(0, 1)


def test_without_a_c_compiler_the_reason_is_kept(monkeypatch, private_cache):
    monkeypatch.setattr(fastlaunch.shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="no C compiler"):
        fastlaunch._built()


@pytest.fixture
def recorded(monkeypatch):
    """Launches of the route + quant host half on CPU tensors: (build's VECTOR and LOGITS_VECTOR, arguments)."""
    import torch

    notes: list[tuple] = []

    class Kernel:
        def __init__(self, unit):
            self.defines = dict(unit.defines)

        def bind(self, grid, block, **_):
            return self

        def fixed(self, start, stop, *given):
            return lambda *changed: notes.append(
                (self.defines["VECTOR"], self.defines["LOGITS_VECTOR"], changed, given)
            )

    monkeypatch.setattr(jit, "load", lambda unit, name, signature, device: Kernel(unit))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 3, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    return notes


def test_aligned_rows_take_the_vector_build_and_others_the_element_wise_one(recorded):
    import torch

    from xpu_moe.cuda.route_quant import launch
    from xpu_moe.ops.route_and_quant_fp8 import Options, empty

    room, logits, bias = torch.zeros(4 * 256 + 8, dtype=torch.bfloat16), torch.zeros(4, 128), torch.zeros(128)
    aligned, shifted = room[: 4 * 256].view(4, 256), room[1 : 4 * 256 + 1].view(4, 256)
    options = Options(2)
    run, out, other = launch.runner(aligned, logits, bias, options), empty(aligned, options), empty(aligned, options)
    for x, given in ((aligned, out), (shifted, out), (aligned, out), (aligned, other)):
        assert run(x, logits, bias, given) is given
    assert [note[:2] for note in recorded] == [(1, 1), (0, 1), (1, 1), (1, 1)]
    pointers = [note[2] for note in recorded]
    assert pointers[0] == (3, aligned.data_ptr(), logits.data_ptr(), bias.data_ptr(), *(t.data_ptr() for t in out))
    assert pointers[1][1] == shifted.data_ptr() and pointers[3][4:] == tuple(t.data_ptr() for t in other)


def test_the_fixed_arguments_are_tokens_roles_strides_and_the_factor(recorded):
    import torch

    from xpu_moe.cuda.route_quant import launch
    from xpu_moe.ops.route_and_quant_fp8 import Options, empty

    x, logits = torch.zeros(5, 384, dtype=torch.bfloat16)[:, :300], torch.zeros(5, 64)
    options = Options(2, scale=2.5, scale_layout="column_major")
    launch.runner(x, logits, None, options)(x, logits, None, empty(x, options))
    ((vector, logits_vector, changed, given),) = recorded
    assert (vector, logits_vector, changed[3]) == (0, 0, 0)  # 300 is no multiple of 8; 64 experts are 2 a lane
    assert given[7:] == (5, 2, 0, 384, 64, 384, 1, 8, 2.5)
