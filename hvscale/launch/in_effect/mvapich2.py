"""MVAPICH2 prints its parameters, with the values in effect, on rank 0."""

import re

from hvscale.launch.in_effect import Started, register
from hvscale.run_folder import InEffect

PREFIX = "MV2_"
SHOW = "MV2_SHOW_ENV_INFO"
LINE = re.compile(r"^\s*(MV2_\w+)\s*[:=]\s*(\S+)", re.MULTILINE)
LONGEST_LOG_BYTES = 1 << 20  # it speaks at the start


class MVAPICH2:
    def ask(self, started: Started) -> dict[str, str]:
        return {SHOW: "1"} if started.library.flavour == "mvapich2" else {}

    def read(self, started: Started, ended: bool) -> InEffect | None:
        if started.library.flavour != "mvapich2" or not ended:
            return None
        try:
            with started.run.log(0).open("rb") as stream:
                settings = dict(LINE.findall(stream.read(LONGEST_LOG_BYTES).decode(errors="replace")))
        except OSError:
            return None
        asked = started.asked(PREFIX)
        # Its list is not complete: only what it prints can contradict.
        not_taken = {
            name: f"{value} was asked for, {settings[name]} is in effect"
            for name, value in asked.items()
            if name in settings and settings[name].lower() != value.lower()
        }
        return InEffect(library=f"MVAPICH2 {started.library.version}", settings=settings, not_taken=not_taken)


register("mvapich2", MVAPICH2())
