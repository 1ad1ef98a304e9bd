"""Named settings.

Four configurations of the study on super-resolution training (Anthony et al., 2021), and the
defaults.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class NamedSettings:
    """Settings that have a name.

    `variants`: lists of values of --set, the best first; the first one that the job's libraries
    support is used. `library`: what Horovod must be built with, None for any.
    """

    meaning: str
    variants: tuple[tuple[str, ...], ...]
    library: str | None = None


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
