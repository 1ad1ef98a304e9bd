"""The environment of a job: the variables it gets from the caller, and the GPUs its ranks see."""

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch.flavours import FLAVOURS, Flavour
from hvscale.launch.mpi.horovod_build import with_flavour_programs

# Programs and libraries, the user and language, the site's certificates, and the task of an array.
PASSED_ON = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX",
    "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "COLORTERM",
    "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID",
)  # fmt: skip

# Variables with these prefixes, or with a flavour's, change how a job communicates or computes. A
# warning lists those that are not passed on.
SHARED_PREFIXES = ("HOROVOD_", "UCX_", "FI_", "NCCL_", "OMP_", "MKL_", "KMP_", "HVPROF_")
NOT_SETTINGS = ("NCCL_VERSION",)  # NVIDIA's images name their NCCL by it
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL")
# Also recorded: the GPUs a job saw, the settings of hvscale's broadcast, and the libraries that
# replace functions. Flavours add their binding variable.
RECORDED = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "HVBCAST_ALGORITHM", "HVBCAST_COUNTS", "LD_PRELOAD",
)  # fmt: skip


def env_variables(requests: Iterable[str], caller: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `--env NAME` (the caller's value) and `--env NAME=VALUE`.

    Raises RequestError for an empty NAME, and for one that the caller does not have.
    """
    variables = {}
    for request in requests:
        name, equals, value = request.partition("=")
        if not name:
            raise RequestError("--env =...: the variable name is missing; write --env NAME or --env NAME=VALUE")
        if not equals and name not in caller:
            # A secret given as NAME=VALUE could be read in the list of processes.
            alternative = "" if names_secret(name) else f", or write --env {name}=VALUE"
            raise RequestError(f"--env {name}: not set in this shell; export it first{alternative}")
        variables[name] = value if equals else caller[name]
    return variables


def job_environment(flavour: Flavour, requests: Iterable[str]) -> dict[str, str]:
    """The environment of a job of this flavour, including the variables of --env."""
    return {**with_flavour_programs(inherited_variables(), flavour), **env_variables(requests)}


def check_not_replaced(requests: Iterable[str], own: Mapping[str, str]) -> None:
    """Raise RequestError if `own`, what hvscale sets for the ranks, loses the value of an `--env`.

    Lists such as LD_PRELOAD keep the user's value beside hvscale's.
    """
    for name, value in env_variables(requests).items():
        if name in own and not parts(value) <= parts(own[name]):
            raise RequestError(f"--env {name}: hvscale sets it for each job itself; leave it out")


def parts(value: str) -> set[str]:
    """The entries of a list as LD_PRELOAD and PATH have it; a single value is its own entry."""
    return set(filter(None, re.split("[: ]", value)))


def inherited_variables(caller: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The caller's variables that a job gets without --env."""
    needed = [name for flavour in FLAVOURS.all().values() for name in flavour.passed_variables]
    return {name: caller[name] for name in [*PASSED_ON, *needed] if name in caller}


@cache
def knob_prefixes() -> tuple[str, ...]:
    """Prefixes of the variables that change how a job communicates or computes."""
    return (*SHARED_PREFIXES, *(prefix for flavour in FLAVOURS.all().values() for prefix in flavour.variable_prefixes))


def dropped_variables(passed: Mapping[str, str], caller: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the caller's communication variables that a job does not get."""
    known = {*passed, *NOT_SETTINGS}
    return sorted(name for name in caller if name.startswith(knob_prefixes()) and name not in known)


def has_public_value(name: str) -> bool:
    """Whether documents may hold its value: a communication variable whose name hints no secret."""
    bindings = [flavour.binding_variable for flavour in FLAVOURS.all().values()]
    known = name.startswith(knob_prefixes()) or name in RECORDED or name in bindings
    return known and not names_secret(name)


def names_secret(name: str) -> bool:
    """Whether a variable's name hints that its value is a secret."""
    return any(word in name.upper() for word in SECRET_WORDS)


def recordable_requests(requests: Iterable[str]) -> list[str]:
    """The values of `--env` as documents may show them: NAME alone if the value is hidden."""
    return [f"{name}={value}" if has_public_value(name) else name for name, value in env_variables(requests).items()]


DEVICE_POLICIES = ("own", "all", "split")


def library_devices_variable(policy: str, flavour: Flavour, library: Library) -> str | None:
    """The variable that lists all GPUs for the communication library; None except with split.

    hvrank applies the policy of `--devices`: own: CUDA_VISIBLE_DEVICES holds only the local rank's
    GPU. all: it keeps the caller's value, and the program selects its GPU. split: as own, and the
    library gets its own list of all GPUs. Raises RequestError for another policy, and for split if
    the library has no such list.
    """
    if policy not in DEVICE_POLICIES:
        raise RequestError(f"--devices {policy}: unknown policy; use one of {', '.join(DEVICE_POLICIES)}")
    if policy != "split":
        return None
    variable = flavour.split_devices_variable(library)
    if variable is None:
        able = [one.split_devices_release for one in FLAVOURS.all().values() if one.split_devices_release]
        raise RequestError(
            f"--devices split: {flavour.name} {library.version} uses the GPUs its process sees; only "
            f"{' and '.join(able)} supports a separate list. Use --devices all, and torch.cuda.set_device(hvd.local_rank()) in "
            "the program"
        )
    return variable
