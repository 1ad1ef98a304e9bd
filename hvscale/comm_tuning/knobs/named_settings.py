"""Settings that have a name: the four configurations of the study on super-resolution training (Anthony et al., 2021), and none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NamedSettings:
    """`ways`: what to set, in the words of --set, the best way first; the first one that the job's libraries can do is taken.

    `library`: one that Horovod must be built on for them to mean anything.
    """

    meaning: str
    ways: tuple[tuple[str, ...], ...]
    library: str | None = None


NAMED = {
    "mpi": NamedSettings(
        "as Horovod is set up by default: each rank's library sees its GPU alone, and registers memory anew",
        (("cuda_ipc=off", "registration_cache=off", "visible_devices=own"),),
    ),
    "mpi-reg": NamedSettings(
        "mpi, with the registration cache", (("cuda_ipc=off", "registration_cache=on", "visible_devices=own"),)
    ),
    "mpi-opt": NamedSettings(
        "the registration cache, and CUDA IPC between ranks whose library sees all GPUs",
        (
            ("cuda_ipc=on", "registration_cache=on", "visible_devices=split"),
            ("cuda_ipc=on", "registration_cache=on", "visible_devices=all"),
        ),
    ),
    "nccl": NamedSettings("NCCL instead of MPI, as it comes", ((),), library="nccl"),
    "defaults": NamedSettings("the libraries as they come", ((),)),
}
