"""hvscale's own broadcast, which replaces MPI_Bcast of large messages over any MPI."""

from hvscale.comm_tuning.collectives.broadcast import ALGORITHM_VARIABLE, LIBRARY
from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import OneOf
from hvscale.launch.flavours import FLAVOURS

register(
    KnobLibrary(
        key="hvbcast",
        name="hvscale's broadcast",
        flavours=tuple(name for name, flavour in FLAVOURS.all().items() if flavour.has_mpi),
        spellings=(
            Spelling(
                knob="hvscale_broadcast",
                variables={ALGORITHM_VARIABLE: "off"},
                values=OneOf({"off": "off", "chain": "chain", "two_level": "two-level"}),
                preload=LIBRARY,
                note="off leaves all broadcasts to the MPI library; any value overrides the broadcasts in --collectives",
                restart="communicator",
                source="docs/explanation/broadcast.md",
            ),
        ),
    )
)
