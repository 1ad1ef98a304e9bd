"""What can be tried: the algorithms of the library and ours, each with the parts that it may cut a
message into.
"""

from collections.abc import Iterator

from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, LIBRARY_AUTO, AlgorithmChoice
from hvscale.comm_tuning.collectives.measure.request import Candidate
from hvscale.comm_tuning.collectives.tables.library_algorithms import OWN_CHOICE, algorithm_knob, algorithms_of
from hvscale.comm_tuning.collectives.tables.table import MOST_CHUNK, MOST_CHUNK_OF_TWO_LEVEL, Operation

CHUNKS = tuple(4096 << power for power in range(8))  # 4 KiB to 512 KiB
SEGMENTS = tuple(8192 << power for power in range(0, 8, 2))  # 8 KiB to 512 KiB
DEPTHS = (4, 16)
RADIXES = (2, 4, 8)


def candidates(mpi: str, operation: Operation, np: int) -> list[Candidate]:
    """The library with nothing set first."""
    found = [Candidate(choice=LIBRARY), *of_the_library(mpi, operation, np)]
    return [*found, *map(as_candidate, ours(np))] if operation == "broadcast" else found


def as_candidate(choice: AlgorithmChoice) -> Candidate:
    return Candidate(choice=choice)


def of_the_library(mpi: str, operation: Operation, np: int) -> Iterator[Candidate]:
    """`auto` is one of its own only where telling algorithms changes what is chosen for the
    rest.
    """
    knob = algorithm_knob(mpi, operation)
    if knob is None:
        return
    for name in algorithms_of(mpi, operation):
        variables = {**knob.also_needed(name), **knob.write(name)}
        if name == OWN_CHOICE:
            if knob.also_set:
                yield Candidate(choice=LIBRARY_AUTO, variables=variables)
        elif name not in knob.only_on or knob.only_on[name](np):
            yield Candidate(choice=AlgorithmChoice(library_algorithm=name), variables=variables)
            for segment in SEGMENTS if name in knob.segmented else ():
                yield Candidate(
                    choice=AlgorithmChoice(library_algorithm=name, segment_bytes=segment),
                    variables={**variables, knob.segment_variable: str(segment)},
                )


def ours(np: int) -> Iterator[AlgorithmChoice]:
    """Of trees a whole message at once, too. Between two ranks all are the same but for
    two-level.
    """
    for chunk in CHUNKS:
        for depth in DEPTHS:
            yield AlgorithmChoice(algorithm="chain", chunk_bytes=chunk, depth=depth)
            if chunk <= MOST_CHUNK_OF_TWO_LEVEL:
                yield AlgorithmChoice(algorithm="two-level", chunk_bytes=chunk, depth=depth)
    if np > 2:
        for chunk in (*CHUNKS, MOST_CHUNK):
            yield AlgorithmChoice(algorithm="flat", chunk_bytes=chunk, depth=DEPTHS[0])
            for radix in RADIXES:
                if radix < np:
                    yield AlgorithmChoice(algorithm="k-nomial", chunk_bytes=chunk, depth=DEPTHS[0], radix=radix)
