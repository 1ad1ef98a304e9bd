"""The lines that start the job with a study's settings: those of its MPI's launchers, horovodrun's, and hvscale's own."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvscale.comm_tuning.tune.outputs.tuned_job import TunedJob, names_of
from hvscale.launch.flavours import mvapich2, openmpi
from hvscale.launch.mpi import hydra
from hvscale.launch.mpi.transport import LIBRARY_DECIDES
from hvscale.launch.nodes.slurm_job import OPTIONS

MCA = "OMPI_MCA_"
HYDRA_BINDING = "HYDRA_BINDING"
# Words of the variables that bind ranks, in srun's.
SRUN_BINDING = {"core": "cores", "socket": "sockets", "numa": "ldoms"}
SRUN_PMI = {"openmpi": "pmix"}
# Those whose mpirun Horovod 0.28 knows how to call.
OF_HOROVODRUN = ("gloo", "intelmpi", "mpich", "openmpi")
Words = list[list[str]]


@dataclass(frozen=True)
class ShellLine:
    """A line for a shell, under a title, with what is to be known of it."""

    title: str
    text: str
    note: str = ""


def lines(tuned: TunedJob) -> list[ShellLine]:
    """Those that apply to the job; hvscale's own first."""
    found = [ShellLine("hvscale", shell(hvscale(tuned)))]
    starting = LAUNCHERS.get(tuned.flavour)
    if starting is not None:
        own = starting(tuned)
        found.append(ShellLine(Path(own[0][0]).name, shell(own), not_said(tuned)))
        found.append(ShellLine("srun", shell(srun(tuned)), not_said(tuned)))
    if uses_horovodrun(tuned):
        note = "For a program that uses Horovod; -H or --hostfile names the hosts. " + not_said(tuned)
        found.append(
            ShellLine(
                "horovodrun", shell([[".", tuned.path("env.sh")]]) + "\n" + shell(horovodrun(tuned)), note.strip()
            )
        )
    return found


def shell(words: Words) -> str:
    """One command, a part on each line."""
    return " \\\n    ".join(shlex.join(part) for part in words)


def not_said(tuned: TunedJob) -> str:
    """What these lines cannot say, as a sentence."""
    if tuned.devices == "own":
        return "Each rank is also to see its own GPU alone: CUDA_VISIBLE_DEVICES is its local rank, which hvscale launch sets."
    if tuned.devices == "split":
        return "Each rank is also to see its own GPU, and its MPI library all of them: hvscale launch sets that."
    return ""


def hvscale(tuned: TunedJob) -> Words:
    settings = [["--settings", tuned.path("settings.toml")]]
    return [["hvscale", "launch", "-np", str(tuned.document.np)], *job_words(tuned), *settings, command(tuned)]


def job_words(tuned: TunedJob, **further: Any) -> Words:
    """The options of the study's launch but for np; `--env` by name alone, because a value may be a secret."""
    launch = tuned.launch
    words = [["--mpi", tuned.flavour]]
    if launch["env"]:
        words.append([word for name in names_of(launch["env"]) for word in ("--env", name)])
    words += placement_words(launch.get("placement"))
    for name in ("start_timeout", *further):
        value = further.get(name, launch.get(name))
        words += [[OPTIONS[name], str(value)]] if value is not None else []
    return words


def placement_words(placement: Any) -> Words:
    """The options of where the job ran, from PlacementOptions as a document holds them."""
    if not placement:
        return []
    if isinstance(placement, str):
        return [["--placement", placement]]
    words = []
    for name, value in placement.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append([option if value else f"--no-{name.replace('_', '-')}"])
        elif isinstance(value, list | tuple):
            words += [[option, str(one)] for one in value]
        elif value is not None:
            words.append([option, str(value)])
    return words


def command(tuned: TunedJob) -> list[str]:
    return ["--", *tuned.document.command]


def environment(tuned: TunedJob) -> Mapping[str, str]:
    """What the job had in the environment, what hvscale sets unasked included."""
    return {**tuned.default_settings, **tuned.variables}


def open_mpi(tuned: TunedJob) -> Words:
    """Open MPI's mpirun: MCA parameters as such, other variables passed on."""
    variables = dict(environment(tuned))
    placing = openmpi.placing(variables, tuned.library)
    variables.pop(openmpi.BINDING, None)
    settings = [
        ["--mca", name.removeprefix(MCA), word] if name.startswith(MCA) else ["-x", f"{name}={word}"]
        for name, word in variables.items()
    ]
    launcher = tuned.library.launcher or "mpirun"
    return [[launcher, "-np", str(tuned.document.np), *placing], *settings, tuned.document.command]


def hydra_kin(tuned: TunedJob) -> Words:
    """mpiexec.hydra; a binding is an option of its own."""
    variables = dict(environment(tuned))
    binding = variables.pop(HYDRA_BINDING, None)
    settings = [["-genv", name, word] for name, word in variables.items()]
    launcher = [tuned.library.launcher or hydra.LAUNCHER, "-np", str(tuned.document.np)]
    return [[*launcher, *(["-bind-to", binding] if binding else [])], *settings, tuned.document.command]


def mvapich2_s(tuned: TunedJob) -> Words:
    """mpiexec.hydra, or mpirun_rsh, which takes NAME=VALUE before the program."""
    launcher = tuned.library.launcher or mvapich2.RSH_LAUNCHER
    if not launcher.endswith(mvapich2.RSH_LAUNCHER):
        return hydra_kin(tuned)
    settings = [[f"{name}={word}"] for name, word in environment(tuned).items()]
    np = str(tuned.document.np)
    return [[launcher, "-np", np, "-hostfile", "HOSTFILE"], *settings, tuned.document.command]


LAUNCHERS: dict[str, Callable[[TunedJob], Words]] = {
    "openmpi": open_mpi,
    "mpich": hydra_kin,
    "intelmpi": hydra_kin,
    "mvapich2": mvapich2_s,
}


def srun(tuned: TunedJob) -> Words:
    """Slurm's srun hands its whole environment on, so the variables stand before it; it binds the ranks itself."""
    variables = dict(environment(tuned))
    binding = variables.pop(openmpi.BINDING, "") or variables.pop(HYDRA_BINDING, "")
    bound = SRUN_BINDING.get(binding.partition(":")[0], "none")
    settings = [f"{name}={word}" for name, word in variables.items()]
    options = ["-n", str(tuned.document.np), f"--mpi={SRUN_PMI.get(tuned.flavour, 'pmi2')}", f"--cpu-bind={bound}"]
    first = [["env", settings[0]], *([word] for word in settings[1:])] if settings else []
    return [*first, ["srun", *options], tuned.document.command]


def uses_horovodrun(tuned: TunedJob) -> bool:
    """Its mpirun line asks Open MPI for ob1, whatever the environment says."""
    return tuned.flavour in OF_HOROVODRUN and (
        tuned.flavour != "openmpi" or tuned.transport in (None, LIBRARY_DECIDES, "ob1")
    )


def horovodrun(tuned: TunedJob) -> Words:
    """Horovod 0.28 spells the binding as Open MPI 5 does not know it."""
    words = [["horovodrun", "-np", str(tuned.document.np), "--config-file", tuned.path("horovodrun.yaml")]]
    if tuned.flavour == "openmpi":
        words.append([f"--binding-args={' '.join(openmpi.placing(tuned.variables, tuned.library))}"])
    return [*words, tuned.document.command]
