"""The command line of the launcher -> Arguments. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from xpu_moe import streams
from xpu_moe.launch.errors import MEANING, USAGE, LaunchError
from xpu_moe.launch.settings import ROWS

_EPILOG = "exit codes: " + ", ".join(f"{code} {text}" for code, text in MEANING.items())


@dataclass(frozen=True)
class Arguments:
    """What was asked for; `flags` holds the settings that were given (text), `extra` what stood after `--`."""

    model: str | None
    demo: bool
    check: bool
    json: bool
    dry_run: bool
    install_plan: bool
    canary: bool
    force: bool
    preflight: str
    print_container: bool
    print_systemd: bool
    device: str | None
    profile: str | None
    flags: dict[str, str]
    extra: tuple[str, ...]


class _Parser(streams.Parser):
    def error(self, message: str) -> NoReturn:
        more = "; a flag of vLLM's own goes behind -- at the end" if message.startswith("unrecognized") else ""
        raise LaunchError(USAGE, f"{message}{more} (--help lists everything)")


def parser() -> streams.Parser:
    """The parser; its errors are LaunchErrors."""
    build = _Parser(
        prog="scripts/serve_minimax.sh",
        description="Serve MiniMax-M2.x with vLLM: check, install, start, watch, prove, serve until Ctrl-C.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    what = build.add_argument_group("what to do")
    what.add_argument("--model", metavar="PATH", help="folder of the checkpoint [MODEL]")
    what.add_argument("--demo", action="store_true", help="serve a tiny random checkpoint, made on the first run")
    what.add_argument("--check", action="store_true", help="start, ask one completion and one chat request, stop")
    what.add_argument("--json", action="store_true", help="print one JSON object on stdout, all else on stderr")
    what.add_argument("--dry-run", action="store_true", help="print environment, command and origins; start nothing")
    what.add_argument("--install-plan", action="store_true", help="print every install command; run nothing")
    what.add_argument("--canary", action="store_true", help="ask a server that already runs on --host and --port")
    what.add_argument("--print-container", action="store_true", help="print a podman/docker command line")
    what.add_argument("--print-systemd", action="store_true", help="print a systemd user unit")
    what.add_argument(
        "--preflight", choices=("auto", "quick", "deep"), default="auto",
        help="deep asks each card and vLLM itself in a child (<= 30 s); auto: with cards or named parsers",
    )  # fmt: skip
    what.add_argument("--force", action="store_true", help="go on where the preflight found errors")
    what.add_argument("--device", choices=("xpu", "cuda", "cpu"), help="default: the best that this machine has")
    what.add_argument("--profile", metavar="NAME", help="a named set of values; `list` lists them")
    values = build.add_argument_group("values (flag > [environment] > profile > default)")
    for row in ROWS:
        default = "" if row.default in (None, "") else f", default {row.default}"
        environment = f" [{row.env}]" if row.env else ""
        names = dict.fromkeys(name for name in (row.flag, row.vllm) if name)  # vLLM's spelling is taken as well
        values.add_argument(*names, dest=f"set_{row.name}", metavar="X", help=f"{row.doc}{environment}{default}")
    return build


def parse(argv: Sequence[str]) -> Arguments:
    """Arguments of a command line; LaunchError(USAGE) for one that makes no sense."""
    own, extra = _split(list(argv))
    known = parser().parse_args(own)
    flags = {row.name: getattr(known, f"set_{row.name}") for row in ROWS}
    arguments = Arguments(
        model=known.model,
        demo=known.demo,
        check=known.check,
        json=known.json,
        dry_run=known.dry_run,
        install_plan=known.install_plan,
        canary=known.canary,
        force=known.force,
        preflight=known.preflight,
        print_container=known.print_container,
        print_systemd=known.print_systemd,
        device=known.device,
        profile=known.profile,
        flags={name: value for name, value in flags.items() if value is not None},
        extra=tuple(extra),
    )
    _sensible(arguments)
    return arguments


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    cut = argv.index("--")
    return argv[:cut], argv[cut + 1 :]


def _sensible(arguments: Arguments) -> None:
    if arguments.demo and arguments.model is not None:
        raise LaunchError(USAGE, "--demo and --model exclude each other")
    modes = ("dry_run", "install_plan", "canary", "print_container", "print_systemd")
    chosen = [f"--{mode.replace('_', '-')}" for mode in modes if getattr(arguments, mode)]
    if len(chosen) > 1:
        raise LaunchError(USAGE, f"{' and '.join(chosen)} exclude each other")
    for word in arguments.extra[:1]:
        if not word.startswith("-"):
            raise LaunchError(USAGE, f"after --: got {word!r}, wanted a vLLM flag such as --enable-prefix-caching")
