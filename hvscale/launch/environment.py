"""The environment of a job: the variables it gets from the caller, and the GPUs its ranks see."""

import os
from collections.abc import Iterable, Mapping
from functools import cache

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch.flavours import FLAVOURS, Flavour
from hvscale.launch.mpi.horovod_build import with_flavour_programs

# What finds programs and libraries, names the user and the language, and holds the site's
# certificates.
PASSED_ON = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX",
    "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "COLORTERM",
    "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip

# Variables that begin so, or with a flavour's prefix, change how a job communicates or computes: a
# warning names those that are not passed on.
SHARED_PREFIXES = ("HOROVOD_", "UCX_", "FI_", "NCCL_", "OMP_", "MKL_", "KMP_", "HVPROF_")
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL")
# What else explains a job's figures: the GPUs that it saw, and the settings of hvscale's broadcast.
# A flavour's binding is recorded, too.
RECORDED = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HVBCAST_COUNTS",
)  # fmt: skip


def env_variables(requests: Iterable[str], caller: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of `--env NAME` (taken from the caller) and `--env NAME=VALUE`.

    Raises RequestError for a NAME that the caller does not have, or an empty one.
    """
    variables = {}
    for request in requests:
        name, equals, value = request.partition("=")
        if not name:
            raise RequestError("--env =...: a variable's name is missing; write --env NAME or --env NAME=VALUE")
        if not equals and name not in caller:
            raise RequestError(
                f"--env {name}: no such variable in this shell; export it first, or write --env {name}=VALUE"
            )
        variables[name] = value if equals else caller[name]
    return variables


def job_environment(flavour: Flavour, requests: Iterable[str]) -> dict[str, str]:
    """What a job of this flavour gets from the caller, with the variables of --env."""
    return {**with_flavour_programs(inherited_variables(), flavour), **env_variables(requests)}


def inherited_variables(caller: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a job gets from the caller without --env."""
    needed = [name for flavour in FLAVOURS.all().values() for name in flavour.passed_variables]
    return {name: caller[name] for name in [*PASSED_ON, *needed] if name in caller}


@cache
def knob_prefixes() -> tuple[str, ...]:
    """How the variables begin that change how a job communicates or computes."""
    return (*SHARED_PREFIXES, *(prefix for flavour in FLAVOURS.all().values() for prefix in flavour.variable_prefixes))


def dropped_variables(passed: Mapping[str, str], caller: Mapping[str, str] = os.environ) -> list[str]:
    """The caller's communication variables that a job does not get, by name."""
    return sorted(name for name in caller if name.startswith(knob_prefixes()) and name not in passed)


def has_public_value(name: str) -> bool:
    """Whether the variable's value may be recorded: that of a communication variable without a
    secret's word in its name.
    """
    bindings = [flavour.binding_variable for flavour in FLAVOURS.all().values()]
    known = name.startswith(knob_prefixes()) or name in RECORDED or name in bindings
    return known and not any(word in name.upper() for word in SECRET_WORDS)


def recordable_requests(requests: Iterable[str]) -> list[str]:
    """The words of `--env` as a document may show them: NAME alone where the value is hidden."""
    return [f"{name}={value}" if has_public_value(name) else name for name, value in env_variables(requests).items()]


DEVICE_POLICIES = ("own", "all", "split")


def library_devices_variable(policy: str, flavour: Flavour, library: Library) -> str | None:
    """The variable that lists all GPUs for the communication library; None except with split.

    The policy is that of `--devices`; rank.py applies it. own: CUDA_VISIBLE_DEVICES holds only the
    local rank's GPU. all: it stays as the caller has it, and the program selects its GPU. split: as
    own, and the library gets its own list of all GPUs. Raises RequestError for another policy, and
    for split if the library has no such list.
    """
    if policy not in DEVICE_POLICIES:
        raise RequestError(f"--devices {policy}: unknown; write one of {', '.join(DEVICE_POLICIES)}")
    if policy != "split":
        return None
    variable = flavour.split_devices_variable(library)
    if variable is None:
        able = [one.split_devices_release for one in FLAVOURS.all().values() if one.split_devices_release]
        raise RequestError(
            f"--devices split: {flavour.name} {library.version} uses the GPUs that its process sees; only "
            f"{' and '.join(able)} can use others. Use --devices all, and torch.cuda.set_device(hvd.local_rank()) in "
            "the program"
        )
    return variable
