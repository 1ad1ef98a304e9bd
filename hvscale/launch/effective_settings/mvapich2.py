"""MVAPICH2 prints its parameters, with the values in effect, on rank 0."""

import re
from collections.abc import Mapping

from hvscale.core.run_folder import InEffect
from hvscale.launch.effective_settings import Show, Started, register

PREFIX = "MV2_"
SHOW = "MV2_SHOW_ENV_INFO"
LINE = re.compile(r"^\s*(MV2_\w+)\s*[:=]\s*(\S+)", re.MULTILINE)
LONGEST_LOG_BYTES = 1 << 20  # it speaks at the start
# The lines of its table, as MVAPICH2's sources print them: an empty one, the title, a rule, the rows, a rule.
TITLE, RULE, ROW = re.compile(r" MVAPICH2-\S+ Parameters"), re.compile(r"-{69}"), re.compile(r"\t.{31}: .*")


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


class WithoutTable:
    """Shows what the ranks print, but not the table of MV2_SHOW_ENV_INFO=1. Other lines that come between its lines are shown."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._rules_to_come = 0
        self._empty_line = False  # kept back: the table may follow

    def __call__(self, rank: int, line: str) -> None:
        if rank != 0:
            self._show(rank, line)
        elif TITLE.fullmatch(line):
            self._empty_line, self._rules_to_come = False, 2
        elif self._rules_to_come and RULE.fullmatch(line):
            self._rules_to_come -= 1
        elif not (self._rules_to_come and ROW.fullmatch(line)):
            if self._empty_line:
                self._show(rank, "")
            self._empty_line = line == ""
            if line:
                self._show(rank, line)


def hide_table(environment: Mapping[str, str], show: Show) -> Show:
    return show if SHOW in environment else WithoutTable(show)


register("mvapich2", MVAPICH2(), hide_table)
