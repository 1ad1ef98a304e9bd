"""Named settings.

Four configurations of the study on super-resolution training (Anthony et al., 2021), and the
defaults.
"""

from dataclasses import dataclass
from pathlib import Path

from hvscale.comm_tuning.knobs.library import libraries
from hvscale.comm_tuning.knobs.settings import target_of, with_settings
from hvscale.comm_tuning.knobs.settings_file import with_settings_file
from hvscale.core.errors import RequestError
from hvscale.launch.options import LaunchOptions


@dataclass(frozen=True)
class NamedSettings:
    """Settings that have a name.

    `variants`: lists of values of --set, the best first; the first one that the job's libraries
    support is used. `library`: what Horovod must be built with, None for any.
    """

    meaning: str
    variants: tuple[tuple[str, ...], ...]
    library: str | None = None


# What a name ends with that is a file's.
FILE = ".toml"

NAMED = {
    "mpi": NamedSettings(
        "Horovod's usual set-up: each rank's library sees only its own GPU, and there is no registration cache",
        (("cuda_ipc=off", "registration_cache=off", "visible_devices=own"),),
    ),
    "mpi-reg": NamedSettings(
        "mpi with the registration cache", (("cuda_ipc=off", "registration_cache=on", "visible_devices=own"),)
    ),
    "mpi-opt": NamedSettings(
        "registration cache, and CUDA IPC between ranks whose library sees all GPUs",
        (
            ("cuda_ipc=on", "registration_cache=on", "visible_devices=split"),
            ("cuda_ipc=on", "registration_cache=on", "visible_devices=all"),
        ),
    ),
    "nccl": NamedSettings("NCCL instead of MPI, with its defaults", ((),), library="nccl"),
    "defaults": NamedSettings("the libraries' defaults", ((),)),
}


def jobs_under(names: list[str], command: list[str], options: LaunchOptions) -> dict[str, LaunchOptions]:
    """The options of the job under each of the named settings.

    Raises RequestError for a name that is not known or given twice, and for what the job's
    libraries cannot do.
    """
    if len(names) < 2 or len({label(name) for name in names}) != len(names):
        raise RequestError(f"{','.join(names)}: name two settings or more, each once, of {known()}")
    return {name: job_of(name, command, options) for name in names}


def known() -> str:
    return f"{', '.join(NAMED)}, or files such as settings{FILE}"


def label(name: str) -> str:
    """What the runs under these settings are called."""
    return Path(name).stem if name.endswith(FILE) else name


def job_of(name: str, command: list[str], options: LaunchOptions) -> LaunchOptions:
    """The options under these settings. Raises RequestError when its libraries cannot do them."""
    if name.endswith(FILE):
        from_file = with_settings_file(Path(name), options)
        return with_settings(from_file.set, command, from_file)
    settings = NAMED.get(name)
    if settings is None:
        raise RequestError(f"{name}: no such settings; known are {known()}")
    check_library(name, settings, command, options)
    refused: RequestError | None = None
    for variant in settings.variants:
        try:
            return with_settings(variant, command, options)
        except RequestError as error:
            refused = error
    raise RequestError(f"{name}: {refused}")


def check_library(name: str, settings: NamedSettings, command: list[str], options: LaunchOptions) -> None:
    for library in libraries():
        if library.key == settings.library and library.in_job(target_of([], command, options)) is not True:
            raise RequestError(
                f"{name}: this job's Horovod is built without {library.name}; a set-up on a machine with CUDA builds it in"
            )
