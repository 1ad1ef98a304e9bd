"""Gloo as built into Horovod 0.28: TCP only, no settings for algorithms."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import Names, OneOf

register(
    KnobLibrary(
        key="gloo",
        name="Gloo",
        flavours=("gloo",),
        spellings=(
            Spelling(
                knob="socket_interfaces",
                variables={"HOROVOD_GLOO_IFACE": ""},
                values=Names("an interface", several=False),
                restart="init",
                source="Horovod's library; by default hvscale sets the interface of each node",
            ),
            Spelling(
                knob="transport",
                variables={"--transport": "tcp"},
                values=OneOf.of("tcp"),
                source="Horovod builds Gloo only with TCP",
            ),
        ),
    )
)
