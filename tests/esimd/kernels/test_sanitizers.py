"""The kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer; and no plain dereference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.esimd.kernels.sanitized import RUNS, program

pytestmark = pytest.mark.soak


def programs(kind: str) -> dict[str, tuple]:
    """Run -> (run, its program): one program for the fp16 runs, one for the others."""
    half = tuple(dict.fromkeys(k for run in RUNS.values() if run.dtype == "float16" for k in run.kernels))
    made = {}
    for name, run in RUNS.items():
        module = run.launches[0].module
        made[name] = run, program(module, half if run.dtype == "float16" else run.kernels, kind)
    return made


@pytest.mark.parametrize("kind", ["address", "thread"])
def test_under_sanitizers(kind, tmp_path):
    """Exactly sized buffers, poisoned outputs and SLM, two orders of threads and groups."""
    for name, (run, path) in programs(kind).items():
        results = []
        for seed in (0, 1):
            out, wanted, counts = run.run(path, tmp_path / f"{name}-{seed}", seed)
            assert np.isfinite(out).all(), name
            if wanted is not None:
                limit = 1e-3 if run.dtype == "float16" else 8e-3
                assert np.linalg.norm(out - wanted) <= limit * np.linalg.norm(wanted), name
            assert (counts["out"].store_min, counts["out"].store_max) == (1, 1)
            results.append(out)
        assert (results[0] == results[1]).all(), name


def test_kernels_never_dereference_a_pointer_themselves(tmp_path):
    """Built with every load and store instrumented: all that touches the buffers are messages, which are counted."""
    for name, (run, path) in programs("coverage").items():
        _, _, counts = run.run(path, tmp_path / name)
        assert {c.plain for c in counts.values()} == {0}, name
        assert counts["w13"].load_max == 1
