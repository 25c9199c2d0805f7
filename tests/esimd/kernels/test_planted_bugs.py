"""Bugs planted in copies of the kernels: each must be caught by the check that is there for it."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from tests.esimd.kernels.sanitized import RUNS, program
from xpu_moe.esimd.kernels import instances

pytestmark = pytest.mark.soak
RUN = RUNS["four-tokens"]


def planted(folder, header, old, new):
    """A copy of the kernels' headers with `old` replaced by `new` in one of them."""
    shutil.copytree(instances.FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "spirv", "__pycache__"))
    text = (folder / header).read_text()
    assert old in text, f"{header} has no {old!r} any more"
    (folder / header).write_text(text.replace(old, new))
    return folder


def run(tmp_path, header, old, new, kind="plain", case=RUN):
    kernels = planted(tmp_path / "kernels", header, old, new)
    path = program(case.launches[0].module, case.kernels, kind, kernels)
    return case.run(path, tmp_path / "case")


def wrong(out: np.ndarray, wanted: np.ndarray) -> bool:
    return not np.linalg.norm(out - wanted) <= 1e-3 * np.linalg.norm(wanted)


BARRIER = "  barrier();\n  const int token = tile * TILE + thread;"


def test_forgotten_barrier_is_a_data_race(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(tmp_path, "moe_u4_down.hpp", BARRIER, BARRIER.replace("barrier();", ""), "thread")
    assert "data race" in caught.value.stderr


def test_forgotten_barrier_shows_in_poisoned_slm(tmp_path):
    out, wanted, _ = run(tmp_path, "moe_u4_down.hpp", BARRIER, BARRIER.replace("barrier();", ""))
    assert wrong(out, wanted)


def test_a_second_read_shows_in_the_counter(tmp_path):
    old = "    decode<STEP>(load_weights<uint32_t, STEP / 8>(reinterpret_cast<const uint32_t*>(w)),"
    old += " flip, even[0], odd[0]);"
    _, _, counts = run(tmp_path, "moe_u4_up.hpp", old, old + old)
    assert counts["w13"].load_max == 2


def test_a_wrong_scale_shows_in_the_numbers(tmp_path):
    out, wanted, _ = run(tmp_path, "moe_u4_down.hpp", "load_scales<T, DOWN_ROWS, STEP / G>(scale, groups, flags)",
                         "load_scales<T, DOWN_ROWS, STEP / G>(scale, 0, flags)")  # fmt: skip
    assert wrong(out, wanted)


def test_unshared_experts_show_in_the_counter(tmp_path):
    _, _, counts = run(tmp_path, "routing.hpp", "if (m < j && match != 0) leads = false;", "")
    assert counts["w13"].load_max > 1


def test_slm_declared_too_small_aborts(tmp_path):
    old = "slm_init<DOWN_MAX_SPLIT * TILE * DOWN_ROWS * 4>();"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(tmp_path, "moe_u4_down.hpp", old, "slm_init<32>();")
    assert "SLM access beyond slm_init" in caught.value.stderr


def test_reading_past_a_buffer_is_an_error(tmp_path):
    old = "hidden_size / STEP, first = steps * part >> shift"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(tmp_path, "moe_u4_up.hpp", old, old.replace("hidden_size / STEP", "hidden_size / STEP + 40"), "address")
    assert "heap-buffer-overflow" in caught.value.stderr


def test_a_barrier_that_some_threads_miss_aborts(tmp_path):
    case = RUNS["one-token"]
    assert case.launches[0].split > 1
    old = "  if (split > 1) {\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(tmp_path, "moe_u4_up.hpp", old, old + "    if (part == 1) return;\n", case=case)
    assert "a barrier that not every work-item reaches" in caught.value.stderr
