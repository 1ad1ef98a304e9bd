"""The commands that start the job with a study's settings, one for each launcher."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hvscale.comm_tuning.tune.outputs.output_format import TunedJob, names_of
from hvscale.launch import flavours
from hvscale.launch.options import LaunchOptions

# Values of the binding variable, and their names in srun.
SRUN_BINDING = {"core": "cores", "socket": "sockets", "numa": "ldoms"}
Words = list[list[str]]


@dataclass(frozen=True)
class ShellCommand:
    """A shell command with a title and a note."""

    title: str
    text: str
    note: str = ""


def commands(tuned: TunedJob) -> list[ShellCommand]:
    """The commands for the job, that of hvscale first."""
    found = [ShellCommand("hvscale", shell(hvscale(tuned)))]
    flavour = flavours.get(tuned.flavour)
    own = flavour.command_line(tuned.document.np, tuned.document.command, environment(tuned), tuned.library)
    if own is not None:
        found.append(ShellCommand(Path(own[0][0]).name, shell(own), device_note(tuned)))
        found.append(ShellCommand("srun", shell(srun(tuned)), device_note(tuned)))
    if uses_horovodrun(tuned):
        note = "For programs that use Horovod; -H or --hostfile names the hosts. " + device_note(tuned)
        found.append(
            ShellCommand(
                "horovodrun", shell([[".", tuned.path("env.sh")]]) + "\n" + shell(horovodrun(tuned)), note.strip()
            )
        )
    return found


def shell(words: Words) -> str:
    """One command, each part on its own line."""
    return " \\\n    ".join(shlex.join(part) for part in words)


def device_note(tuned: TunedJob) -> str:
    """A note on the GPUs of each rank, which these commands cannot set; empty if not needed."""
    if tuned.devices == "own":
        return "Each rank must also see only its own GPU: set CUDA_VISIBLE_DEVICES to its local rank, as hvscale launch does."
    if tuned.devices == "split":
        return "Each rank must also see only its own GPU, and its MPI library all of them; hvscale launch sets that."
    return ""


def hvscale(tuned: TunedJob) -> Words:
    settings = [["--settings", tuned.path("settings.toml")]]
    return [["hvscale", "launch", "-np", str(tuned.document.np)], *launch_words(tuned), *settings, command(tuned)]


def launch_words(tuned: TunedJob, further: Collection[str] = ()) -> Words:
    """The launch options of the study: library, placement, --env, and those named in `further`.

    --env has only the names, because a value may be a secret.
    """
    launch = tuned.launch
    asked = LaunchOptions(
        mpi=tuned.flavour,
        env=tuple(names_of(launch.env)),
        placement=launch.placement,
        start_timeout=launch.start_timeout,
        **{name: getattr(launch, name) for name in further},
    )
    return asked.command_line()


def command(tuned: TunedJob) -> list[str]:
    return ["--", *tuned.document.command]


def environment(tuned: TunedJob) -> Mapping[str, str]:
    """The variables of the settings, and those that hvscale sets by default."""
    return {**tuned.default_settings, **tuned.variables}


def srun(tuned: TunedJob) -> Words:
    """The command with srun, which passes on its whole environment and binds the ranks itself."""
    variables = dict(environment(tuned))
    flavour = flavours.get(tuned.flavour)
    binding = variables.pop(flavour.binding_variable or "", "")
    bound = SRUN_BINDING.get(binding.partition(":")[0], "none")
    settings = [f"{name}={word}" for name, word in variables.items()]
    options = ["-n", str(tuned.document.np), f"--mpi={flavour.srun_mpi}", f"--cpu-bind={bound}"]
    first = [["env", settings[0]], *([word] for word in settings[1:])] if settings else []
    return [*first, ["srun", *options], tuned.document.command]


def uses_horovodrun(tuned: TunedJob) -> bool:
    return flavours.get(tuned.flavour).works_with_horovodrun(tuned.transport)


def horovodrun(tuned: TunedJob) -> Words:
    words = [["horovodrun", "-np", str(tuned.document.np), "--config-file", tuned.path("horovodrun.yaml")]]
    own = flavours.get(tuned.flavour).horovodrun_options(tuned.variables, tuned.library)
    return [*words, *([own] if own else []), tuned.document.command]
