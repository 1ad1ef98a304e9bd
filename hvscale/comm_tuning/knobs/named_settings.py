"""Named settings: four configurations of a study on super-resolution training, and the defaults.

The study: Anthony et al., 2021.
"""

from dataclasses import dataclass
from pathlib import Path

from hvscale.comm_tuning.knobs.library import libraries
from hvscale.comm_tuning.knobs.settings import target_of, with_settings
from hvscale.comm_tuning.knobs.settings_file import with_settings_file
from hvscale.core.errors import ConflictError, RequestError
from hvscale.launch.options import LaunchOptions


@dataclass(frozen=True)
class NamedSettings:
    """Settings that have a name.

    `variants`: lists of values for --set, the best first; a job uses the first that its libraries
    support. `library`: the library that Horovod must be built with, None for any.
    """

    meaning: str
    variants: tuple[tuple[str, ...], ...]
    library: str | None = None


FILE_SUFFIX = ".toml"  # a name that ends with it is a file

NAMED = {
    "mpi": NamedSettings(
        "Horovod's usual set-up: each rank's library sees only the rank's GPU, without a registration cache",
        (("cuda_ipc=off", "registration_cache=off", "visible_devices=own"),),
    ),
    "mpi-reg": NamedSettings(
        "mpi with the registration cache", (("cuda_ipc=off", "registration_cache=on", "visible_devices=own"),)
    ),
    "mpi-opt": NamedSettings(
        "registration cache, and CUDA IPC between ranks whose libraries see all GPUs",
        (
            ("cuda_ipc=on", "registration_cache=on", "visible_devices=split"),
            ("cuda_ipc=on", "registration_cache=on", "visible_devices=all"),
        ),
    ),
    "nccl": NamedSettings("NCCL instead of MPI, with its defaults", ((),), library="nccl"),
    "defaults": NamedSettings("the libraries' defaults", ((),)),
}


def options_by_name(names: list[str], command: list[str], options: LaunchOptions) -> dict[str, LaunchOptions]:
    """The launch options with each of the named settings.

    Raises RequestError for a name that is unknown or repeated, and for settings that the job's
    libraries do not support.
    """
    if len(names) < 2 or len({label(name) for name in names}) != len(names):
        raise RequestError(f"{','.join(names)}: name at least two different settings: {known()}")
    return {name: with_named_settings(name, command, options) for name in names}


def known() -> str:
    return f"{', '.join(NAMED)}, or files such as settings{FILE_SUFFIX}"


def label(name: str) -> str:
    """The label of runs with these settings."""
    return Path(name).stem if name.endswith(FILE_SUFFIX) else name


def with_named_settings(name: str, command: list[str], options: LaunchOptions) -> LaunchOptions:
    """The options with these settings.

    Raises RequestError if the job's libraries do not support them, and ConflictError if they do but
    the options ask for other values.
    """
    if name.endswith(FILE_SUFFIX):
        options, file_settings = with_settings_file(Path(name), options)
        return with_settings((*options.set, *file_settings), command, options)
    settings = NAMED.get(name)
    if settings is None:
        raise RequestError(f"{name}: unknown settings; use {known()}")
    check_library(name, settings, command, options)
    rejections = []
    for variant in settings.variants:
        try:
            return with_settings(variant, command, options)
        except RequestError as error:
            rejections.append(error)
    conflict = next((one for one in rejections if isinstance(one, ConflictError)), None)
    if conflict is not None:
        raise ConflictError(f"{name}: {conflict}")
    raise RequestError(f"{name}: {rejections[-1]}")


def check_library(name: str, settings: NamedSettings, command: list[str], options: LaunchOptions) -> None:
    for library in libraries():
        if library.key == settings.library and library.in_job(target_of([], command, options)) is not True:
            raise RequestError(
                f"{name}: this job's Horovod is built without {library.name}; run the set-up on a machine with CUDA to include it"
            )
