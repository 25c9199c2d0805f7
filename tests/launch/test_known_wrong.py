"""Values that are known to be wrong end the launch before anything is made, and a dry run too."""

from __future__ import annotations

import json

import pytest

from tests.launch.test_checks import MINIMAX, folder, plan_of, refused
from xpu_moe.launch import args, backends, main, model, own_env, preflight
from xpu_moe.launch.errors import OK, USAGE
from xpu_moe.launch.words import counted
from xpu_moe.ops import contract


def early(*argv, **environ):
    return main.early(args.parse([*argv, "--device", "cpu", "--dry-run"]), environ)


@pytest.fixture
def minimax(tmp_path):
    return str(folder(tmp_path / "MiniMax", MINIMAX))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("XPU_MOE_BACKEND", "nope", "wanted one of esimd, "),
        ("XPU_MOE_BACKEND", "CPU_groupd", "did you mean cpu_grouped?"),
        ("XPU_MOE_EXPLAIN", "x", "wanted 1 or 0"),
        ("XPU_MOE_CHECK", "maybe", "wanted 1 or 0"),
        ("XPU_MOE_TRACE_KERNELS", "2", "wanted 1 or 0"),
        ("XPU_MOE_STALL_LIMIT", "x", "wanted a whole number"),
        ("XPU_MOE_VLLM", "maybe", "wanted the path of a vllm command"),
        ("XPU_MOE_VLLM", "/", "wanted the path of a vllm command"),
    ],
)
def test_a_wrong_variable_of_ours_is_named(name, value, wanted):
    said = refused(lambda: early("--demo", **{name: value}))
    assert said.startswith(f"{name}={value!r}: ") and wanted in said


def test_every_variable_of_ours_with_a_typed_reader_is_read():
    from xpu_moe.env.registry import registry

    typed = [row for row in registry().values() if row.name.startswith("XPU_MOE_") and row.kind in ("bool", "int")]
    assert len(typed) >= 4
    for row in typed:
        assert row.name in refused(own_env.check, {row.name: "nonsense"})


def test_right_and_empty_values_pass(tmp_path):
    command = tmp_path / "vllm"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    good = {"XPU_MOE_BACKEND": "cpu_grouped", "XPU_MOE_EXPLAIN": "yes", "XPU_MOE_VLLM": str(command)}
    assert early("--demo", **good) is None
    assert early("--demo", **dict.fromkeys(good, "")) is None
    assert early("--demo", XPU_MOE_VLLM="vllm", PATH=str(tmp_path)) is None


def test_a_variable_that_nothing_reads_is_noted(minimax):
    found = model.check(minimax)
    notes = plan_of(found, "--kv-cache-memory-bytes", "1G", environ={"XPU_MOE_EXPLIAN": "1"}).notes
    assert notes == ("XPU_MOE_EXPLIAN: no such variable, nothing reads it; did you mean XPU_MOE_EXPLAIN?",)


def test_the_table_of_backends_is_what_the_rooms_offer():
    offered = {
        device: {backend.name for backend in contract.offered(device) if backend.op in backends.OPS}
        for device in contract.ROOMS
    }
    assert {device: {n for n, kinds in backends.BACKENDS.items() if device in kinds} for device in offered} == offered


def test_a_backend_is_known_and_of_this_device(minimax):
    found = model.check(minimax)
    said = refused(lambda: early("--demo", "--backend", "cpu_groupd"))
    assert said.startswith("--backend='cpu_groupd': wanted one of") and said.endswith("did you mean cpu_grouped?")
    assert "is a backend for xpu, this launch is for cpu; wanted cpu_grouped" in refused(
        lambda: plan_of(found, "--backend", "esimd")
    )
    assert refused(lambda: plan_of(found, environ={"XPU_MOE_BACKEND": "esimd"})).startswith("XPU_MOE_BACKEND='esimd'")
    both = {"XPU_MOE_BACKEND": "esimd"}  # the flag is for the experts, other operators would ask the variable
    assert "XPU_MOE_BACKEND" in refused(lambda: plan_of(found, "--backend", "cpu_grouped", environ=both))
    for name in ("backend", "prefill_backend"):
        own = json.dumps({"xpu_moe": {name: "nope"}})
        said = refused(lambda own=own: plan_of(found, "--", "--additional-config", own))
        assert said.startswith(f"--additional-config xpu_moe.{name}='nope': wanted one of")
    assert '"backend": "esimd"' in " ".join(plan_of(found, "--backend", "esimd", kind="xpu").command)


IMPOSSIBLE = (
    (("--max-model-len", "999999999"), "--max-model-len 999999999: "),
    (("--kv-cache-dtype", "foo"), "--kv-cache-dtype foo: "),
    (("--dcp", "3"), "--dcp 3: "),
    (("--attention-backend", "foo"), "--attention-backend foo: "),
    (("--", "--kv-cache-dtype", "foo"), "--kv-cache-dtype foo after --: "),
)


@pytest.mark.parametrize(("argv", "start"), IMPOSSIBLE)
def test_what_cannot_be_is_refused_with_and_without_a_model(minimax, argv, start):
    for what in (["--demo"], ["--model", minimax]):
        assert refused(lambda what=what: main.early(args.parse([*what, "--dry-run", *argv]), {})).startswith(start)


def test_the_models_own_length_is_named(minimax):
    said = refused(lambda: early("--model", minimax, MAX_MODEL_LEN="196609"))
    assert said.startswith("MAX_MODEL_LEN 196609: ") and "--max-model-len 196608" in said
    assert early("--model", minimax, MAX_MODEL_LEN="196608") is not None
    assert early("--model", minimax, MAX_MODEL_LEN="196609", VLLM_ALLOW_LONG_MAX_MODEL_LEN="1") is not None
    assert early("--model", minimax, "--force", MAX_MODEL_LEN="196609") is not None


@pytest.mark.parametrize("mode", ["--dry-run", "--print-systemd", "--print-container"])
def test_a_plan_that_cannot_be_is_not_printed(minimax, capfd, mode):
    argv = ["--model", minimax, "--device", "cuda", mode]
    profile = ["--profile", "h200-tp4-fp8"]
    for more, code in (
        (["--dcp", "3"], USAGE),
        ([*profile, "--dcp", "3"], USAGE),  # judged with what the profile gives
        (["--dcp", "3", "--force"], OK),
        ([], OK),
    ):
        assert main.main([*argv, *more]) == code, more
        out, err = capfd.readouterr()
        assert bool(out) == (code == OK) and ("--dcp 3: " in err) == (code == USAGE)


def test_a_model_that_the_demo_does_not_look_at_is_told(capfd, monkeypatch):
    monkeypatch.setenv("MODEL", "/nope")
    assert main.main(["--demo", "--device", "cpu", "--dry-run"]) == OK
    assert "# note: MODEL='/nope' is not looked at: --demo serves" in capfd.readouterr().out


def test_one_is_not_several(minimax, capfd):
    assert [counted(number, "error") for number in (0, 1, 2)] == ["0 errors", "1 error", "2 errors"]
    found = plan_of(model.check(minimax))
    findings = [preflight.Finding("c", severity, "a", "t", "w", "f", "s") for severity in ("error", "warn")]
    preflight.say_files(found, findings, main.Console())
    assert "dry run: 1 error, 1 warning in" in capfd.readouterr().err
