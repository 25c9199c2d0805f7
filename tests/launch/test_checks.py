"""What is refused before anything is made: arguments, values, model folders. One line, code 2."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.launch.conftest import PROJECT
from xpu_moe.env.read import BadValue
from xpu_moe.launch import args, build, detect, main, model, settings, watch
from xpu_moe.launch.errors import USAGE, LaunchError
from xpu_moe.launch.secrets import Masker

MINIMAX = {
    "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62, "num_local_experts": 256, "head_dim": 128,
    "num_experts_per_tok": 8, "vocab_size": 200064, "max_position_embeddings": 196608, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True},
}  # fmt: skip


def refused(call, *arguments) -> str:
    with pytest.raises(LaunchError) as caught:
        call(*arguments)
    assert caught.value.code == USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def folder(path, config=None, **files):
    path.mkdir(parents=True)
    config = {"model_type": "minimax_m2", "num_attention_heads": 48, "num_key_value_heads": 8} | (config or {})
    (path / "config.json").write_text(json.dumps(config))
    for name, data in ({"model.safetensors": b""} | files).items():
        (path / name).write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--demo", "--model", "x"], "exclude each other"),
        (["--demo", "--dry-run", "--install-plan"], "exclude each other"),
        (["--nonsense"], "unrecognized arguments"),
        (["--gpu-memory-utilization", "0.9"], "behind --"),
        (["--demo", "--", "stray"], "after --"),
        (["--device", "tpu"], "invalid choice"),
        (["--tp"], "expected one argument"),
    ],
)
def test_arguments(argv, words):
    assert words in refused(args.parse, argv)


def test_vllms_spelling_of_a_setting_is_taken():
    assert args.parse(["--demo", "--tensor-parallel-size", "4"]).flags == {"tp": "4"}
    assert args.parse(["--demo", "--decode-context-parallel-size=2"]).flags == {"dcp": "2"}


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("tp", "0", "at least 1"),
        ("tp", "two", "digits only"),
        ("tp", "4G", "digits only"),
        ("tp", "9" * 5000, "at most 1073741824"),
        ("max_model_len", "99999999999", "at most 1073741824"),
        ("port", "70000", "between 1 and 65535"),
        ("kv_cache_memory_bytes", "4GiB", "bytes such as"),
        ("dtype", "int8", "one of"),
        ("ccl_ipc", "pipe", "one of"),
        ("served_model_name", "a\nb", "control characters"),
    ],
)
def test_values(flag, value, words):
    message = refused(lambda: settings.resolve({flag: value}, {}, demo=False))
    assert words in message and settings.BY_NAME[flag].flag in message


def test_a_bad_environment_value_names_its_variable():
    assert "MAX_MODEL_LEN='1e4'" in refused(lambda: settings.resolve({}, {"MAX_MODEL_LEN": "1e4"}, demo=False))


def test_origins_flag_over_environment_over_profile_over_default():
    found = settings.resolve(
        {"tp": "4"},
        {"TP": "2", "MAX_NUM_SEQS": "16"},
        demo=False,
        profile={"tp": 1, "max_num_seqs": 8, "block_size": 64},
        profile_name="p",
    )
    assert (found["tp"].value, found["tp"].origin) == (4, "flag --tp")
    assert (found["max_num_seqs"].value, found["max_num_seqs"].origin) == (16, "environment MAX_NUM_SEQS")
    assert (found["block_size"].value, found["block_size"].origin) == (64, "profile p")
    assert (found["port"].value, found["port"].origin) == (8000, "default")


@pytest.mark.parametrize("name", ["TP", "PP", "DTYPE", "MAX_MODEL_LEN", "MAX_BATCHED_TOKENS", "MAX_NUM_SEQS",
                                  "BLOCK_SIZE", "CCL_IPC", "INPUT_LEN", "OUTPUT_LEN", "NUM_PROMPTS"])  # fmt: skip
def test_the_fields_environment_names_are_honoured(name):
    row = next(row for row in settings.ROWS if row.env == name)
    given = {"DTYPE": "float16", "CCL_IPC": "sockets"}.get(name, "2")
    found = settings.resolve({}, {name: given}, demo=False)[row.name]
    assert str(found.value) == given and found.origin == f"environment {name}"


def test_kv_bytes_have_vllms_suffixes():
    values = [settings.size(text) for text in ("4g", "4G", "256M", "1000")]
    assert values == [4 * 10**9, 4 << 30, 256 << 20, 1000]


def test_model_folders(tmp_path):
    assert "no such folder" in refused(model.check, str(tmp_path / "missing"))
    assert "hf download MiniMaxAI/MiniMax-M2" in refused(model.check, "MiniMaxAI/MiniMax-M2")
    file = tmp_path / "file"
    file.write_text("x")
    assert "not a folder" in refused(model.check, str(file))
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(model.check, str(tmp_path / "empty"))
    assert "'llama'" in refused(model.check, str(folder(tmp_path / "llama", {"model_type": "llama"})))
    broken = folder(tmp_path / "broken")
    (broken / "config.json").write_text("{")
    assert "cannot be read as JSON" in refused(model.check, str(broken))
    (broken / "config.json").write_text("[" * 100_000)
    assert "cannot be read as JSON" in refused(model.check, str(broken))
    for text, kind in (("[1]", "list"), ("null", "null"), ('"x"', "text"), ("1", "number"), ("true", "true or false")):
        (broken / "config.json").write_text(text)
        assert refused(model.check, str(broken)).endswith(f"config.json': got {kind}, wanted a JSON object")
    (broken / "config.json").unlink()
    os.mkfifo(broken / "config.json")
    assert "not a regular file" in refused(model.check, str(broken))  # and nobody waits for its writer
    assert "name too long" in refused(model.check, "/" + "a" * 300)
    bare = folder(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    assert "no .safetensors" in refused(model.check, str(bare))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "MODEL.BIN"])
def test_pickled_weights_are_refused_even_beside_safetensors(tmp_path, name):
    assert name in refused(model.check, str(folder(tmp_path / "m", **{name: b""})))


def test_the_hubs_cache_folder_leads_to_its_snapshot(tmp_path):
    root = tmp_path / "models--Some--MiniMax-INT4"
    found = folder(root / "snapshots" / "0123abcd")
    assert f"did you mean --model {found}?" in refused(model.check, str(root))
    assert model.check(str(found)).name == "MiniMax-INT4"
    (tmp_path / "empty").mkdir()
    assert "give the checkpoint's own folder" in refused(model.check, str(tmp_path / "empty"))


def test_a_model_of_the_environment_is_blamed_on_its_variable():
    said = refused(main.early, args.parse(["--dry-run"]), {"MODEL": "/nowhere/at-all"})
    assert said.startswith("variable MODEL: ") and "no such folder" in said


def test_gguf_is_named(tmp_path):
    (tmp_path / "x.gguf").touch()
    for given in (tmp_path, tmp_path / "x.gguf"):
        assert "GGUF" in refused(model.check, str(given)) and "INT4" in refused(model.check, str(given))


def test_an_untested_vllm_is_told(tmp_path, monkeypatch):
    found = model.check(str(folder(tmp_path / "m")))
    monkeypatch.setattr(build.versions, "installed", lambda: {"vllm": "0.33.1.dev7+xpu"})
    assert any("0.33.1.dev7+xpu is untested" in note for note in plan_of(found).notes)
    monkeypatch.setattr(build.versions, "installed", lambda: {"vllm": "0.32.1.dev7+xpu"})
    assert not any("untested" in note for note in plan_of(found).notes)


def test_pickled_load_formats_are_refused():
    chosen = settings.resolve({}, {}, demo=False)
    assert "pickled" in refused(build.with_extra, chosen, ("--load-format", "pt"))


@pytest.mark.parametrize("tp", [5, 7, 9, 3, 6])
def test_tp_must_divide_the_heads(tmp_path, tp):
    found = model.check(str(folder(tmp_path / "m")))
    assert "possible: 1, 2, 4, 8, 16, 24, 48" in refused(model.check_split, found, tp)


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
def test_tp_that_divides(tmp_path, tp):
    model.check_split(model.check(str(folder(tmp_path / "m"))), tp)


@pytest.mark.parametrize("tp", [8, 16, 48])
def test_a_slice_of_an_expert_must_hold_whole_groups(tmp_path, tp):
    """1536 columns: eight slices of 192 hold no group of 128. --force goes on: another kernel of vLLM's might do it."""
    found = model.check(str(folder(tmp_path / "m", MINIMAX)))
    said = refused(model.check_split, found, tp)
    assert f"1536 / {tp} = " in said and "possible: 1, 2, 4 (--force" in said
    assert said.count("possible") == 1 and "possible: 1, 2, 4" in refused(model.check_split, found, 5)
    model.check_split(found, tp, force=True)
    model.check_split(found, tp, expert_parallel=True)
    with pytest.raises(LaunchError, match="does not divide"):
        model.check_split(found, 5, force=True)


def test_the_cut_is_judged_for_the_demo_for_experts_kept_whole_and_for_a_profile(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(main.detect, "refuse_idle_cards", lambda device: None)
    path = str(folder(tmp_path / "m", MINIMAX))
    small = str(folder(tmp_path / "small", MINIMAX | {"num_attention_heads": 2, "num_key_value_heads": 2}))
    cuda = ("--device", "cuda", "--dry-run")
    for argv, code in (
        (("--demo", "--tp", "4", "--dry-run"), USAGE),
        (("--model", path, "--tp", "8", *cuda), USAGE),
        (("--model", path, "--tp", "8", *cuda, "--force"), 0),
        (("--model", path, "--tp", "8", *cuda, "--", "--enable-expert-parallel"), 0),
        (("--model", path, *cuda, "--profile", "h200-tp4-fp8"), 0),
        (("--model", small, *cuda, "--profile", "h200-tp4-fp8"), USAGE),
    ):
        assert main.main(argv) == code, argv
        assert ("possible: " in capfd.readouterr().err) == (code == USAGE)


@pytest.mark.parametrize("value", ["abc", "0", "-3", "1e3"])
def test_a_bad_stall_limit_is_refused_before_anything_is_started(tmp_path, value):
    path = str(folder(tmp_path / "m"))
    for argv in (("--model", path, "--dry-run"), ("--demo", "--dry-run")):
        with pytest.raises((LaunchError, BadValue), match="XPU_MOE_STALL_LIMIT"):
            main.early(args.parse(argv), {"XPU_MOE_STALL_LIMIT": value})
    assert watch.limit({"XPU_MOE_STALL_LIMIT": "1800"}) == 1800 and watch.limit({}) is None


def broken(path, how):
    """A MiniMax folder with something wrong in its files that a start would be refused for."""
    config, files = dict(MINIMAX), {}
    if how == "missing shard":
        files = {"model-00001-of-00002.safetensors": b"\x02" + bytes(7) + b"{}"}
    elif how == "empty index":
        files = {"model.safetensors.index.json": b'{"weight_map": {}}'}
    elif how == "LFS pointer":
        files = {"model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}
    elif how == "desc_act":
        config["quantization_config"] = MINIMAX["quantization_config"] | {"quant_method": "gptq", "desc_act": True}
    return folder(path, config, **files)


@pytest.mark.parametrize("how", ["missing shard", "empty index", "LFS pointer", "truncated", "desc_act"])
def test_a_dry_run_tells_what_a_start_would_be_refused_for(tmp_path, capfd, how):
    found = broken(tmp_path / "m", how)
    argv = ["--model", str(found), "--tp", "4", "--device", "xpu", "--dry-run"]
    assert main.main(argv) == 0
    out, err = capfd.readouterr()
    assert "serve" in out and "error model." in err and "a start would be refused" in err
    assert err.splitlines()[-1].endswith(f"not looked at: this machine (python3 -m xpu_moe.doctor --model {found})")
    assert main.main([*argv, "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["preflight"]
    assert any(row["severity"] == "error" and row["about"].startswith("model.") for row in rows)


def test_a_dry_run_of_a_whole_checkpoint_says_what_it_did_not_look_at(checkpoint, capfd):
    assert main.main(["--model", str(checkpoint), "--device", "cpu", "--dry-run"]) == 0
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith("dry run: 0 errors, 0 warnings") and "refused" not in said
    assert main.main(["--demo", "--device", "cpu", "--dry-run"]) == 0
    assert not capfd.readouterr().err


def test_auto_map_is_named_and_its_code_is_not_run(tmp_path):
    found = model.check(str(folder(tmp_path / "m", {"auto_map": {"AutoModel": "modeling_x.Evil"}})))
    plan = plan_of(found)
    assert any("modeling_x.Evil" in note for note in plan.notes)
    assert "--trust-remote-code" not in plan.command


def test_a_taken_port_is_told(free_port):
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port))
        holder.listen()
        chosen = settings.resolve({"port": str(free_port)}, {}, demo=False)
        assert f"--port {free_port}" in refused(main.free_port, chosen)
    main.free_port(chosen)


def test_the_bench_line_must_fit_the_context():
    chosen = settings.resolve({"input_len": "900", "output_len": "200", "max_model_len": "1024"}, {}, demo=False)
    assert "more than --max-model-len 1024" in refused(build.check_lengths, chosen)


def plan_of(found, *argv, kind="cpu", environ=None):
    arguments = args.parse(["--model", str(found.path), *argv])
    device = detect.Found(kind, 4, "test")
    return build.build(arguments, found, device, environ or {}, vllm="vllm", run_folder=found.path, make_folders=False)


def test_what_stands_after_the_dashes_is_the_last_word(tmp_path):
    found = model.check(str(folder(tmp_path / "m")))
    plan = plan_of(found, "--tp", "2", "--", "-tp", "4", "--max_model_len=99", "--enable-prefix-caching", kind="cuda")
    assert plan.value("tp") == 4 and plan.settings["tp"].origin == "flag -tp after --"
    assert plan.value("max_model_len") == 99
    assert "--tensor-parallel-size" not in plan.command and plan.command[-1] == "--enable-prefix-caching"


def test_a_key_travels_in_the_environment(tmp_path):
    plan = plan_of(model.check(str(folder(tmp_path / "m"))), "--", "--api-key", "sesame")
    assert plan.secrets == {"VLLM_API_KEY": "sesame"} and "sesame" not in " ".join(plan.command)
    assert "sesame" not in repr(plan)


def test_a_wider_address_without_a_key_warns(tmp_path):
    found = model.check(str(folder(tmp_path / "m")))
    assert any("VLLM_API_KEY" in note for note in plan_of(found, "--host", "0.0.0.0").notes)
    assert not plan_of(found, "--host", "0.0.0.0", "--", "--api-key", "sesame").notes
    assert not plan_of(found).notes


def test_the_users_additional_config_is_kept(tmp_path):
    found = model.check(str(folder(tmp_path / "m")))
    plan = plan_of(found, "--", "--additional-config", '{"mine": 1, "xpu_moe": {"decode_limit": 8}}')
    config = json.loads(plan.command[plan.command.index("--additional-config") + 1])
    assert plan.command.count("--additional-config") == 1
    assert config["mine"] == 1 and config["xpu_moe"]["decode_limit"] == 8 and config["xpu_moe"]["fingerprint"]
    for bad in ("{", "[]", '{"xpu_moe": {"unknown": 1}}'):
        assert "additional-config" in refused(lambda bad=bad: plan_of(found, "--", "--additional-config", bad))


def test_ccl_ipc_becomes_the_variable_on_intel_cards_only(tmp_path):
    found = model.check(str(folder(tmp_path / "m")))
    rows = {row.name: row for row in plan_of(found, kind="xpu", environ={"CCL_IPC": "sockets"}).environment}
    assert rows["CCL_ZE_IPC_EXCHANGE"].value == "sockets"
    assert rows["CCL_ZE_IPC_EXCHANGE"].origin == "environment CCL_IPC"
    assert "CCL_ZE_IPC_EXCHANGE" not in {row.name for row in plan_of(found, environ={"CCL_IPC": "pidfd"}).environment}


def test_the_users_own_variables_win_and_are_shown_so(tmp_path):
    found = model.check(str(folder(tmp_path / "m")))
    rows = {row.name: row for row in plan_of(found, kind="xpu", environ={"CCL_ATL_TRANSPORT": "mpi"}).environment}
    assert rows["CCL_ATL_TRANSPORT"].value == "mpi" and rows["CCL_ATL_TRANSPORT"].origin.startswith("yours")


def test_cores_are_shared_among_ranks():
    from xpu_moe.launch.environment import cpu_shares

    assert cpu_shares(2, [0, 1, 2, 3]) == "0,1|2,3"
    assert cpu_shares(2, [4, 5, 6]) == "4|5"
    assert "2 cores" in refused(cpu_shares, 4, [0, 1])
    assert refused(cpu_shares, 4, [0]).endswith("may use 1 core")


@pytest.mark.parametrize(
    "name", ["plain", "with spaces", 'it\'s "q"', "$(touch INJECTED)`id`;#", "two\nlines", "-dash"]
)
def test_the_printed_plan_pasted_into_a_shell_is_the_plan(tmp_path, name):
    found = model.check(str(folder(tmp_path / name)))
    plan = plan_of(found, environ={"DO_NOT_TRACK": "a'b$(touch INJECTED)\nc"})
    text = plan.text(Masker()).replace("\nvllm serve", "\nprintf '%s\\0' vllm serve")
    done = subprocess.run(["sh", "-c", f'{text}\nprintf %s "$DO_NOT_TRACK"'], capture_output=True, cwd=tmp_path)
    *words, variable = done.stdout.decode().split("\0")
    assert tuple(words) == plan.command
    assert variable == "a'b$(touch INJECTED)\nc"
    assert not done.stderr and not list(tmp_path.rglob("INJECTED"))


def test_the_plan_names_the_active_environments_vllm(tmp_path, monkeypatch):
    """Before our package is in it, the plan is made by another Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    monkeypatch.delenv("XPU_MOE_VLLM", raising=False)
    monkeypatch.setattr(main.sys, "executable", "/no/such/bin/python")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert main.vllm_command() == str(tmp_path / "bin" / "vllm")
    monkeypatch.setenv("VIRTUAL_ENV", "/no/such")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert main.vllm_command() == str(PROJECT / ".venv" / "bin" / "vllm")


def test_the_module_has_no_install_plan_and_starts_no_demo_for_it(capsys):
    from xpu_moe.launch.main import main

    assert main(["--install-plan", "--json"]) == 2
    assert "wanted scripts/serve_minimax.sh --install-plan" in json.loads(capsys.readouterr().out)["error"]
