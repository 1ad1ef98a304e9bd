"""Gloo as it lies inside Horovod 0.28: TCP, and nothing about its algorithms can be set."""

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
                source="Horovod's library names it; hvscale gives each node's own interface by default",
            ),
            Spelling(
                knob="transport",
                variables={"--transport": "tcp"},
                values=OneOf.of("tcp"),
                source="Horovod builds Gloo with TCP alone",
            ),
        ),
    )
)
