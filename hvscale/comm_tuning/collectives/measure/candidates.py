"""The candidates to measure: the library's algorithms, and hvscale's own broadcasts."""

from collections.abc import Iterator

from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, LIBRARY_AUTO, AlgorithmChoice
from hvscale.comm_tuning.collectives.measure.request import Candidate
from hvscale.comm_tuning.collectives.tables.table import MAX_CHUNK, MAX_TWO_LEVEL_CHUNK, Operation
from hvscale.comm_tuning.knobs.library import AUTO, algorithm_knob, algorithms_of

CHUNKS = tuple(4096 << power for power in range(8))  # 4 KiB to 512 KiB
SEGMENTS = tuple(8192 << power for power in range(0, 8, 2))  # 8 KiB to 512 KiB
DEPTHS = (4, 16)
RADIXES = (2, 4, 8)


def candidates(mpi: str, operation: Operation, np: int) -> list[Candidate]:
    """All candidates of a collective; the first is the library with nothing set."""
    found = [Candidate(choice=LIBRARY), *library_algorithms(mpi, operation, np)]
    if operation == "broadcast":
        found += [Candidate(choice=choice) for choice in own_broadcasts(np)]
    return found


def library_algorithms(mpi: str, operation: Operation, np: int) -> Iterator[Candidate]:
    """The library's named algorithms that support `np` ranks, with each segment size.

    `auto` is a separate candidate only if selecting an algorithm needs further variables
    (`also_set`): these may change the library's own choice.
    """
    knob = algorithm_knob(mpi, operation)
    if knob is None:
        return
    for name in algorithms_of(mpi, operation):
        variables = {**knob.required_variables(name), **knob.write(name)}
        if name == AUTO:
            if knob.also_set:
                yield Candidate(choice=LIBRARY_AUTO, variables=variables)
        elif knob.supports(name, np):
            yield Candidate(choice=AlgorithmChoice(library_algorithm=name), variables=variables)
            for segment in SEGMENTS if name in knob.segmented else ():
                yield Candidate(
                    choice=AlgorithmChoice(library_algorithm=name, segment_bytes=segment),
                    variables={**variables, knob.segment_variable: str(segment)},
                )


def own_broadcasts(np: int) -> Iterator[AlgorithmChoice]:
    """hvscale's broadcasts; trees also with the whole message as one chunk.

    Between two ranks flat, chain and k-nomial are the same, so only chain is tried.
    """
    for chunk in CHUNKS:
        for depth in DEPTHS:
            yield AlgorithmChoice(algorithm="chain", chunk_bytes=chunk, depth=depth)
            if chunk <= MAX_TWO_LEVEL_CHUNK:
                yield AlgorithmChoice(algorithm="two-level", chunk_bytes=chunk, depth=depth)
    if np > 2:
        for chunk in (*CHUNKS, MAX_CHUNK):
            yield AlgorithmChoice(algorithm="flat", chunk_bytes=chunk, depth=DEPTHS[0])
            for radix in RADIXES:
                if radix < np:
                    yield AlgorithmChoice(algorithm="k-nomial", chunk_bytes=chunk, depth=DEPTHS[0], radix=radix)
