"""The messages that people paste, and what they mean: a table. `logs.py` walks it.

`kind`: a `cause` explains the failure, a `symptom` follows from one, a `note` is harmless or only informs.
`about` may name a group of the pattern in braces (`env.{name}`). `keys` are literals of which a matching line contains
at least one: a cheap test before the pattern. `blames` names settings that, when the log shows them changed to the
given value (`None` = any), are the setting to change: the finding is then about the first of them. `where` restricts a
message to phases. `asked`: words of the launch's own
arguments ("non-default args") that make the finding one about that setting. `also` are further places worth a look.
"""

from __future__ import annotations

import re

from xpu_moe.doctor.messages import builds, cpu, first_day, machine, model, own, settings
from xpu_moe.doctor.messages.message import Message

__all__ = ["HARMLESS", "MESSAGES", "Message"]

# In this order they are tried: what a setting explains comes before what a device says.
MESSAGES: tuple[Message, ...] = (
    *own.MESSAGES, *settings.MESSAGES, *machine.MESSAGES, *cpu.MESSAGES, *model.MESSAGES, *builds.MESSAGES,
    *first_day.MESSAGES, *own.REST,
)  # fmt: skip

# lines that name a variable and mean nothing bad
HARMLESS = re.compile(
    r"topology recognition shows PCIe connection|did not find MPI-launcher|value of \w+ changed to be"
    r"|non-default args:|Automatically detected platform|Found ulimit of \d+ and failed"
)
