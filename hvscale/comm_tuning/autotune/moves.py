"""The changes that autotune may make in a running job: live knobs, their values and variables."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from hvscale.comm_tuning.autotune.rank_side.request import split
from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.knobs.settings import Setting, accepting_spellings, given_in, target_of
from hvscale.comm_tuning.tune.search_space import SEARCH_SPACE
from hvscale.core.built_library import built_library
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from hvscale.launch.options import LaunchOptions

# Values of the knobs whose values in SEARCH_SPACE depend on a profile.
THRESHOLDS = tuple(f"{size}M" for size in (1, 4, 8, 16, 32, 64, 128, 256, 512))
SEARCHED: dict[str, tuple[str, ...]] = {"fusion_threshold": THRESHOLDS}
LIVE = (
    *("cycle_time", "fusion_threshold", "allreduce_algorithm", "segment_size", "eager_threshold"),
    *("hvscale_broadcast", "broadcast_algorithm"),
)
Moves = dict[str, dict[str, dict[str, str]]]


def live_moves(command: list[str], options: LaunchOptions, library: Library) -> Moves:
    """By knob and value, the variables that set it; knobs that the user has set are left out."""
    target = target_of([], command, options, library)
    taken = {*given_in(options), *(name for name in target.environment if name.startswith("HOROVOD_"))}
    moves: Moves = {}
    for entry in SEARCH_SPACE:
        if entry.knob in LIVE and entry.knob not in options.knobs:
            values = SEARCHED.get(entry.knob) or (entry.values if isinstance(entry.values, tuple) else ())
            if entry.knob == "hvscale_broadcast" and options.collectives is not None:
                values = (*values, "off")  # the broadcasts of a table are the default
            of_knob = dict(_values(entry.knob, values, target, options.np, taken))
            if of_knob:
                moves[entry.knob] = of_knob
    return moves


def _values(
    knob: str, values: tuple[str, ...], target: Target, np: int, taken: set[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    for value in values:
        with suppress(RequestError):
            found: dict[str, str] = {}
            for spelling, parsed in accepting_spellings(Setting(knob, value), target):
                if not spelling.is_live or not spelling.supports(value, np):
                    raise RequestError(value)
                if spelling.preload:
                    built_library(spelling.preload)
                found |= {**spelling.required_variables(parsed), **spelling.write(parsed)}
            if not taken & found.keys():
                yield value, found


def mpi_words(moves: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[tuple[str, str]]:
    """The values that an MPI library knows by name, for which its tools interface has numbers."""
    return [
        (name, word)
        for values in moves.values()
        for variables in values.values()
        for name, word in split(variables).mpi.items()
        if not word.isdigit()
    ]
