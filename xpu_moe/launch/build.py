"""Arguments + environment + model -> LaunchPlan. Nothing is started, and with `make_folders=False` nothing is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xpu_moe.env import versions
from xpu_moe.launch import backends, environment, graphs, kv, named, own_env, settings
from xpu_moe.launch.args import Arguments
from xpu_moe.launch.detect import Found
from xpu_moe.launch.errors import USAGE, LaunchError
from xpu_moe.launch.model import Model
from xpu_moe.launch.plan import LaunchPlan, pairs
from xpu_moe.launch.settings import Setting
from xpu_moe.serving import compat
from xpu_moe.serving.options import BadOption, Options

_LOOPBACK = ("127.", "localhost", "::1", "[::1]")
# vLLM's short or older spellings of flags that are rows of ours.
_ALIASES = {"-tp": "tp", "-pp": "pp", "-dcp": "dcp", "--kv-cache-memory": "kv_cache_memory_bytes"}
_BY_FLAG = {row.vllm: row.name for row in settings.ROWS if row.vllm} | _ALIASES
# Formats that vLLM reads through pickle.
_PICKLED_FORMATS = ("pt", "npcache")
DEMO_NAME = "minimax-demo"


def build(
    arguments: Arguments,
    model: Model,
    device: Found,
    environ: Mapping[str, str],
    *,
    vllm: str,
    run_folder: Path,
    make_folders: bool = True,
) -> LaunchPlan:
    """The plan; LaunchError(USAGE) for values that contradict each other."""
    profile = named.find(arguments.profile or named.DEFAULT, device.kind, device.why)
    chosen = with_extra(resolve(arguments, environ, profile), arguments.extra)
    if not chosen["served_model_name"].value:
        name = DEMO_NAME if arguments.demo else model.name
        chosen["served_model_name"] = Setting(settings.BY_NAME["served_model_name"], name, "default")
    graph = graphs.decision(device, chosen, model.quantization, environ)
    chosen, kv_note = kv.fill(chosen, device, model, graph.on, environ, arguments.extra)
    check_lengths(chosen)
    extra, secrets = _keys(arguments.extra)
    extra, additional = _additional(extra, chosen, graph.hooks, device)
    backends.check_device(environ.get("XPU_MOE_BACKEND", ""), "XPU_MOE_BACKEND", device.kind)
    # A profile that wants graphs has variables for them: without graphs they would only be misleading.
    env = profile.env if graph.on or profile.name == profile.env else profile.env.replace("graph", named.DEFAULT)
    rows = {row.name: row for row in environment.render(device, chosen, environ, run_folder, env, make_folders)}
    rows |= {name: row for name, row in graphs.rows(graph).items() if row.value is not None or name in environ}
    flags = [*_flags(chosen, arguments, extra), *_unless(profile.flags, extra)]
    flags += graphs.flags(graph, device, profile.compilation, extra)
    notes = (
        *device.notes,
        kv_note,
        graphs.note(graph, device, extra, chosen["graph"]),
        *_notes(arguments, model, chosen, environ),
    )
    return LaunchPlan(
        model=model,
        device=device,
        demo=arguments.demo,
        settings=chosen,
        profile=profile.name,
        graph=graph.on,
        extra=extra,
        command=(vllm, "serve", str(model.path), *flags, *additional, *extra),
        environment=tuple(rows.values()),
        secrets=secrets,
        notes=tuple(note for note in notes if note),
    )


def resolve(arguments: Arguments, environ: Mapping[str, str], profile: named.Named | None = None) -> dict[str, Setting]:
    """The settings of a command line, an environment and a profile."""
    values, name = (profile.values, profile.name) if profile else ({}, "")
    return settings.resolve(arguments.flags, environ, demo=arguments.demo, profile=values, profile_name=name)


def check_lengths(chosen: Mapping[str, Setting]) -> None:
    """The bench line must fit into the context; LaunchError(USAGE)."""
    limit, asked = chosen["max_model_len"].value, [chosen[n].value or 0 for n in ("input_len", "output_len")]
    if limit and sum(asked) > limit:
        raise LaunchError(
            USAGE, f"--input-len {asked[0]} + --output-len {asked[1]}: more than --max-model-len {limit}; lower one"
        )


def with_extra(chosen: dict[str, Setting], extra: tuple[str, ...]) -> dict[str, Setting]:
    """What stands after `--` is the user's last word: it replaces a setting of ours."""
    for flag, value in pairs(extra):
        name = _BY_FLAG.get(flag)
        if flag == "--model":  # it would be served unchecked in the place of ours
            raise LaunchError(USAGE, "--model after --: give the checkpoint before the --, where it is checked")
        if flag == "--load-format" and value in _PICKLED_FORMATS:
            raise LaunchError(USAGE, f"--load-format {value}: reads pickled files, which can run code; use safetensors")
        if name and value is not None:
            row = settings.BY_NAME[name]
            try:
                chosen[name] = Setting(row, row.parse(value), f"flag {flag} after --")
            except ValueError as error:
                raise LaunchError(USAGE, f"{flag} {value!r} after --: {error}") from None
    return chosen


def _flags(chosen: Mapping[str, Setting], arguments: Arguments, extra: tuple[str, ...]) -> list[str]:
    given = {flag for flag, _ in pairs(extra)}
    words: list[str] = []
    for setting in chosen.values():
        row = setting.row
        one = setting.value == 1 and setting.origin == "default"  # tp, pp, dcp: vLLM's own default
        if row.vllm and setting.value not in (None, "") and not one and not setting.origin.endswith("after --"):
            words += [row.vllm, str(setting.value)]
    if chosen["tool_call_parser"].value and "--enable-auto-tool-choice" not in given:
        words.append("--enable-auto-tool-choice")
    if "--load-format" not in given:
        words += ["--load-format", "safetensors"]
    if arguments.demo and not given & {"--enforce-eager", "--no-enforce-eager", "--compilation-config", "-cc", "-O"}:
        words.append("--enforce-eager")  # the demo is about starting fast
    return words


def _keys(extra: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """A single --api-key travels in the environment: an argument can be read by everybody on the machine."""
    keys = [value for flag, value in pairs(extra) if flag == "--api-key"]
    if len(keys) != 1 or not keys[0] or " " in keys[0]:
        return extra, {}
    return _without(extra, "--api-key"), {"VLLM_API_KEY": keys[0]}


def _unless(flags: tuple[str, ...], extra: tuple[str, ...]) -> list[str]:
    """A profile's flags without those that the user gave another value after `--`."""
    given = {flag for flag, _ in pairs(extra)}
    kept: list[str] = []
    dropping = False
    for word in flags:
        if word.startswith("--"):
            dropping = word in given or f"--{word.removeprefix('--no-')}" in given
        if not dropping:
            kept.append(word)
    return kept


def _additional(
    extra: tuple[str, ...], chosen: Mapping[str, Setting], hooks: tuple[str, ...], device: Found
) -> tuple[tuple[str, ...], list[str]]:
    given: Any = {}
    for flag, value in pairs(extra):
        if flag == "--additional-config":
            try:
                given = json.loads(value or "")
            except ValueError as error:
                raise LaunchError(USAGE, f"--additional-config: not JSON ({error})") from None
            if not isinstance(given, dict):
                raise LaunchError(USAGE, f"--additional-config: got {type(given).__name__}, wanted an object")
    try:
        options = Options(backend=chosen["backend"].value or "", hooks=("auto", *hooks))
        merged = options.additional_config(given)
    except BadOption as error:
        raise LaunchError(USAGE, str(error)) from None
    _backends(merged["xpu_moe"], chosen, given, device)
    return _without(extra, "--additional-config"), ["--additional-config", json.dumps(merged, sort_keys=True)]


def _backends(
    merged: Mapping[str, Any], chosen: Mapping[str, Setting], given: Mapping[str, Any], device: Found
) -> None:
    """LaunchError(USAGE) where a backend that was asked for is unknown, or one of another device."""
    own = given.get("xpu_moe", {})
    flag = chosen["backend"].origin.split()[-1]
    for name in ("backend", "prefill_backend"):
        value, where = merged[name], f"--additional-config xpu_moe.{name}" if name in own else flag
        try:
            backends.backend(value)
        except ValueError as error:
            raise LaunchError(USAGE, f"{where}={value!r}: {error}") from None
        backends.check_device(value, where, device.kind)


def _without(extra: tuple[str, ...], flag: str) -> tuple[str, ...]:
    kept: list[str] = []
    dropping = False
    for word in extra:
        if word.startswith("-"):
            dropping = word.partition("=")[0].replace("_", "-") == flag
        if not dropping:
            kept.append(word)
    return tuple(kept)


def _notes(arguments: Arguments, model: Model, chosen: Mapping[str, Setting], environ: Mapping[str, str]) -> list[str]:
    vllm = versions.installed().get("vllm")
    untested = compat.untested(vllm) if vllm else ""
    notes = own_env.unknown(environ)
    notes += [f"{untested}: its own kernels serve this checkpoint, or refuse it"] if untested else []
    if arguments.demo and environ.get("MODEL"):
        notes.append(f"MODEL={environ['MODEL']!r} is not looked at: --demo serves a checkpoint of its own")
    flags = {flag for flag, _ in pairs(arguments.extra)}
    host = str(chosen["host"].value)
    if not host.startswith(_LOOPBACK) and "--api-key" not in flags and not environ.get("VLLM_API_KEY"):
        notes.append(f"--host {host}: everybody who reaches this address can use the server; set VLLM_API_KEY")
    if model.auto_map:
        notes.append(
            f"config.json has auto_map ({', '.join(model.auto_map)}): that code is not run; vLLM's own MiniMax is used"
        )
    if "--trust-remote-code" in flags:
        notes.append("--trust-remote-code is your own choice: vLLM will run code from the model folder")
    if sum(flag == "--api-key" for flag, _ in pairs(arguments.extra)) and not _keys(arguments.extra)[1]:
        notes.append("several --api-key values stay in the command line, where other users of this machine see them")
    return notes
