"""CUDA: the GPUs that a rank's program and libraries see."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import OneOf

register(
    KnobLibrary(
        key="cuda",
        name="CUDA",
        spellings=(
            Spelling(
                knob="visible_devices",
                variables={"--devices": "all"},
                values=OneOf.of("own", "all"),
                note="sets CUDA_VISIBLE_DEVICES; own prevents CUDA IPC between ranks",
                source="CUDA C++ programming guide, CUDA environment variables",
            ),
        ),
    )
)
