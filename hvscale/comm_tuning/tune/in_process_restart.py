"""Horovod's knobs within one start: what hvd.shutdown() and another hvd.init() can change.

Found by trying, with Horovod 0.28.1 (common/parameter_manager.cc): a value that
HOROVOD_FUSION_THRESHOLD or HOROVOD_CYCLE_TIME has set stays until another value is set, even when
the variable is removed. Once both have been set, the next hvd.init() of the process ends it with
SIGSEGV.
"""

from collections.abc import Mapping

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.tune.job_space import JobSettings, JobSpace, in_job
from hvscale.launch.environment import has_public_value

NEVER_BOTH = {"fusion_threshold": "HOROVOD_FUSION_THRESHOLD", "cycle_time": "HOROVOD_CYCLE_TIME"}
MAX_FOLLOW_UPS = (
    5  # trials after the first of a start: the MPI library's knobs, which need a fresh start, must get their turn
)


class InProcessRestart:
    """What the trials of one start may change.

    `start`: its number, which alternates between the two knobs of `NEVER_BOTH` where either could
    be free.
    """

    def __init__(self, target: Target, started_with: Mapping[str, str], start: int) -> None:
        """`started_with`: variables of the start, in addition to the target's environment."""
        self.target, self.start, self.follow_ups = target, start, 0
        self.now = {
            name: value
            for name, value in {**target.environment, **started_with}.items()
            if name.startswith("HOROVOD_") and has_public_value(name)  # they are written to a file
        }

    def free(self, space: JobSpace) -> frozenset[str]:
        """The knobs that the next trial of this start may change; none when this start must end."""
        already_set = [knob for knob, variable in NEVER_BOTH.items() if variable in self.now]
        if self.follow_ups == MAX_FOLLOW_UPS or len(already_set) == len(NEVER_BOTH):
            return frozenset()
        kept = next(iter(already_set), list(NEVER_BOTH)[self.start % len(NEVER_BOTH)])
        excluded = set(NEVER_BOTH) - {kept}
        return frozenset(one.knob for one in space.dimensions if one.at_init and one.knob not in excluded)

    def variables(self, space: JobSpace, settings: JobSettings, wanted: Mapping[str, str]) -> dict[str, str]:
        """The variables that Horovod must read for these settings.

        `wanted`: those that a fresh start would have.
        """
        self.follow_ups += 1
        for dimension in space.dimensions:
            if dimension.at_init:
                for spelling in in_job(self.target, dimension.knob):
                    for name, default in spelling.variables.items():
                        if name in wanted:
                            self.now[name] = wanted[name]
                        elif name in self.now:
                            self.now[name] = self.target.environment.get(name, default)
        return dict(self.now)
