"""The entry point with stand-ins for vLLM: what it decides by version, and that it never ends a process."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from xpu_moe.formats.claims import AUTO_ROUND
from xpu_moe.serving import compat, plugin, report, tell
from xpu_moe.serving.hooks.table import ABSENT, HOOKS, UnknownHook, chosen
from xpu_moe.serving.options import Options
from xpu_moe.serving.report import Worker


@pytest.fixture
def process(monkeypatch):
    """A process in which nothing was registered yet."""
    monkeypatch.setattr(plugin, "_done", False)
    monkeypatch.setattr(tell, "_worker", Worker())


def vllm(monkeypatch, version: str) -> ModuleType:
    module = ModuleType("vllm")
    module.__version__ = version
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)
    monkeypatch.setitem(sys.modules, "vllm.distributed", None)
    return module


def test_the_entry_point_names_register():
    entries = [e for e in importlib.metadata.entry_points(group="vllm.general_plugins") if e.name == "xpu_moe"]
    assert [entry.value for entry in entries] == ["xpu_moe.serving.plugin:register"]


@pytest.mark.parametrize("version", ["0.21.0", "0.27.1", "0.33.0rc1", "0.25.9+xpu", "dev", "1.0", ""])
def test_an_untested_vllm_is_left_alone_with_one_line(process, monkeypatch, caplog, tmp_path, version):
    vllm(monkeypatch, version)
    monkeypatch.setenv("XPU_MOE_REPORT", str(tmp_path))
    monkeypatch.setattr(plugin, "_install", lambda: pytest.fail("touched vLLM"))
    with caplog.at_level(logging.INFO, "vllm.xpu_moe"):
        plugin.register()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert f"vLLM {version} is untested" in caplog.text
    told = report.summary(tmp_path)
    assert told["backend"] == report.STOCK and "untested" in told["reason"]


@pytest.mark.parametrize("version", ["0.26.0", "0.26.1", "0.32.0", "0.32.0+cpu", "0.32.1.dev3+xpu"])
def test_a_tested_release_is_set_up_once(process, monkeypatch, version):
    calls = []
    vllm(monkeypatch, version)
    monkeypatch.setattr(plugin, "_install", lambda: calls.append(version))
    plugin.register()
    plugin.register()
    assert calls == [version]


def test_a_failing_set_up_ends_no_process(process, monkeypatch, caplog, tmp_path):
    def fail():
        raise ImportError("no module of this name")

    vllm(monkeypatch, "0.32.0")
    monkeypatch.setenv("XPU_MOE_REPORT", str(tmp_path))
    monkeypatch.setattr(plugin, "_install", fail)
    plugin.register()
    assert "no module of this name" in caplog.text
    assert "no module of this name" in report.summary(tmp_path)["reason"]


def test_a_report_folder_that_cannot_be_written_is_a_warning(process, monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("")
    vllm(monkeypatch, "0.21.0")
    monkeypatch.setenv("XPU_MOE_REPORT", str(tmp_path / "file"))
    plugin.register()
    assert "XPU_MOE_REPORT" in caplog.text


def platform(kind: str) -> SimpleNamespace:
    asked = {f"is_{name}": (lambda name=name: name == kind) for name in ("cpu", "xpu", "cuda", "rocm")}
    return SimpleNamespace(device_type=kind, **asked)


@pytest.mark.parametrize("kind", ["cpu", "xpu", "cuda", "rocm", "tpu"])
def test_the_device_kind_is_vllms(monkeypatch, kind):
    module = ModuleType("vllm.platforms")
    module.current_platform = platform(kind)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)
    assert compat.device_kind() == kind


def test_the_worker_wrapper_is_wrapped_once(monkeypatch):
    module = ModuleType("vllm.v1.worker.worker_base")

    class WorkerWrapperBase:
        def init_device(self):
            order.append("device")
            return "done"

    order: list[str] = []
    module.WorkerWrapperBase = WorkerWrapperBase
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def around(wrapper, initialise):
        order.append("before")
        result = initialise()
        order.append("after")
        return result

    compat.wrap_init_device(around)
    compat.wrap_init_device(around)
    assert WorkerWrapperBase().init_device() == "done"
    assert order == ["before", "device", "after"]


def test_options_that_nobody_gave_enter_the_compile_cache_key():
    """With our quantization only: another model's key stays as it was."""
    config = SimpleNamespace(additional_config={"mine": 1}, model_config=SimpleNamespace(quantization=AUTO_ROUND))
    plugin._fill_options(config)
    assert config.additional_config == Options().additional_config({"mine": 1})
    config.additional_config["xpu_moe"]["decode_limit"] = 8
    plugin._fill_options(config)
    assert Options.read(config.additional_config).decode_limit == 8
    assert config.additional_config["xpu_moe"]["fingerprint"] == Options(decode_limit=8).fingerprint()
    other = SimpleNamespace(additional_config={}, model_config=SimpleNamespace(quantization=None))
    plugin._fill_options(other)
    assert other.additional_config == {}
    config.additional_config["xpu_moe"]["typo"] = 1
    with pytest.raises(ValueError, match="typo"):
        plugin._fill_options(config)


def test_a_wrong_option_ends_the_start_with_its_name(process, monkeypatch):
    wrapper = SimpleNamespace(vllm_config=SimpleNamespace(additional_config={"xpu_moe": {"limit": 3}}))
    with pytest.raises(ValueError, match=r"xpu_moe\.limit: unknown"):
        plugin._around_init_device(wrapper, lambda: pytest.fail("went on"))


def names(hooks) -> list[str]:
    return [hook.name for hook in hooks]


def test_auto_hooks_follow_device_and_release():
    assert names(chosen(("auto",), "cpu", "0.32")) == ["cpu_router"]
    assert names(chosen(("auto",), "cpu", "0.26")) == []
    assert names(chosen(("auto",), "xpu", "0.26")) == ["qk_norm"]
    assert names(chosen(("qk_norm", "auto"), "cpu", "0.32")) == ["cpu_router", "qk_norm"]
    assert names(chosen(("skip_graph_memory_estimate",), "xpu", "0.32")) == ["skip_graph_memory_estimate"]
    assert names(chosen((), "cpu", "0.32")) == []


@pytest.mark.parametrize("name, said", [("typo", "unknown"), *((name, ABSENT[name][:20]) for name in ABSENT)])
def test_a_hook_that_we_lack_is_an_error_with_the_reason(name, said):
    with pytest.raises(UnknownHook, match=said):
        chosen((name,), "xpu", "0.32")


def test_every_row_has_its_file():
    folder = Path(next(iter(sys.modules["xpu_moe.serving.hooks"].__path__)))
    for hook in HOOKS:
        source = (folder / f"{hook.name}.py").read_text(encoding="utf-8")
        assert any(f"def {moment}(" in source for moment in ("early", "before", "after")), hook.name
        assert set(hook.auto) <= set(hook.devices) and set(hook.vllm) <= set(compat.TESTED)


def test_the_graph_memory_estimate_is_skipped_on_the_runner():
    from xpu_moe.serving.hooks import skip_graph_memory_estimate as hook

    runner = SimpleNamespace(profile_cudagraph_memory=lambda: pytest.fail("captured"))
    assert hook.after(None, SimpleNamespace(worker=SimpleNamespace(model_runner=runner)))
    assert runner.profile_cudagraph_memory() == 0
    assert hook.after(None, SimpleNamespace(worker=SimpleNamespace(model_runner=SimpleNamespace()))) == ""
