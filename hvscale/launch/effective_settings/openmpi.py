"""Open MPI writes which of its parameters came from the environment, with the values it made of them."""

import re
import subprocess
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from hvscale.core.run_folder import InEffect
from hvscale.launch.effective_settings import Started, register

PREFIX = "OMPI_MCA_"
REPORT = "openmpi.txt"
LINE = re.compile(r"^(\w+)=(.*) \((\w+)\)$", re.MULTILINE)
INFO_SECONDS = 30
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TRUE, FALSE = ("1", "t", "true", "enabled", "yes", "y"), ("0", "f", "false", "disabled", "no", "n")
SETTLED_SECONDS = 0.5  # rank 0 writes the file at once; this long after, it is whole


class OpenMPI:
    def ask(self, started: Started) -> dict[str, str]:
        if started.library.flavour != "openmpi":
            return {}
        return {
            f"{PREFIX}mpi_show_mca_params": "enviro,file",
            f"{PREFIX}mpi_show_mca_params_file": str(started.folder / REPORT),
        }

    def read(self, started: Started, ended: bool) -> InEffect | None:
        report = started.folder / REPORT
        try:
            if not ended and time.time() - report.stat().st_mtime < SETTLED_SECONDS:
                return None
            text = report.read_text(errors="replace")
        except OSError:
            return None
        settings = {name: value for name, value, _ in LINE.findall(text) if not name.startswith("mpi_show_mca_params")}
        asked = {name.removeprefix(PREFIX): value for name, value in started.asked(PREFIX).items()}
        asked = {name: value for name, value in asked.items() if not name.startswith("mpi_show_mca_params")}
        doubtful = [name for name, value in asked.items() if not same(value, settings.get(name))]
        known = parameters(started) if doubtful else {}
        not_taken = {}
        for name in doubtful:
            parameter = known.get(name)
            if name not in settings and parameter is not None and same(asked[name], parameter.value):
                # Read by a part that reports elsewhere, such as UCX's.
                settings[name] = parameter.value
            elif (why := _why(asked[name], settings.get(name), parameter if known else Parameter())) is not None:
                not_taken[PREFIX + name] = why
        return InEffect(library=f"Open MPI {started.library.version}", settings=settings, not_taken=not_taken)


def same(asked: str, used: str | None) -> bool:
    """Whether the value that Open MPI prints is the one that was asked for, in other words."""
    if used is None:
        return False
    words, shown = asked.strip().lower(), used.strip().lower()
    if words == shown or any(words in spellings and shown in spellings for spellings in (TRUE, FALSE)):
        return True
    number = re.fullmatch(r"(\d+)([kmg]?)b?", words)
    return number is not None and shown == str(int(number[1]) * UNITS.get(number[2], 1))


@dataclass
class Parameter:
    """What ompi_info says of one: its value in the job's environment, and the names of its values by number where they have names."""

    value: str = ""
    names: dict[str, str] = field(default_factory=dict)


def _why(asked: str, used: str | None, parameter: Parameter | None) -> str | None:
    """None when it was taken after all: values of a list are printed by name, and may be asked for by number."""
    if used is None:
        return "Open MPI knows no such parameter" if parameter is None else "Open MPI has not read it in this job"
    named = parameter is not None and parameter.names.get(asked) == used
    return None if named else f"{asked} was asked for, {used} is in effect"


def parameters(started: Started) -> dict[str, Parameter]:
    """Every parameter that ompi_info knows; empty without ompi_info."""
    info = Path(started.library.launcher or "mpirun").parent / "ompi_info"
    try:
        listed = subprocess.run(
            [info, "--all", "--parsable"],
            env=dict(started.environment),
            capture_output=True,
            text=True,
            timeout=INFO_SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse(listed)


def parse(listed: str) -> dict[str, Parameter]:
    """The parameters in what `ompi_info --all --parsable` prints."""
    found: defaultdict[str, Parameter] = defaultdict(Parameter)
    for name, kind, rest in re.findall(r"^mca:\w+:\w+:param:(\w+):(\w+):(.*)$", listed, re.MULTILINE):
        if kind == "value":
            found[name].value = rest.strip('"')  # it quotes what holds a colon
        elif kind == "enumerator":
            number, _, word = rest.removeprefix("value:").partition(":")
            found[name].names[number] = word
    return dict(found)


register("openmpi", OpenMPI())
