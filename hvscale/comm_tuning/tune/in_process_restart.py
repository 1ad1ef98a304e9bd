"""Horovod's own knobs within one start of the job: what hvd.shutdown() and another hvd.init() can change, and what they cannot.

Facts, of Horovod 0.28.1 (common/parameter_manager.cc), found by trying: what HOROVOD_FUSION_THRESHOLD or HOROVOD_CYCLE_TIME has set once stays until
another value is set, also when the variable goes; and once both have been set, the next hvd.init() of the process ends it by SIGSEGV.
"""

from collections.abc import Mapping

from hvscale.comm_tuning.knobs.library import Target
from hvscale.comm_tuning.tune.job_space import JobSpace, Settings, in_job
from hvscale.launch.environment import has_public_value

NEVER_BOTH = {"fusion_threshold": "HOROVOD_FUSION_THRESHOLD", "cycle_time": "HOROVOD_CYCLE_TIME"}
MAX_FOLLOW_UPS = 5  # of one start: the library's knobs, which need another one, are to be tried too


class InProcessRestart:
    """What the trials of one start may change. `turn` decides which of two knobs is left alone where either can be."""

    def __init__(self, target: Target, started_with: Mapping[str, str], turn: int) -> None:
        """`started_with`: the variables that the job was started with, beside those of the target's environment."""
        self.target, self.turn, self.follow_ups = target, turn, 0
        self.now = {
            name: value
            for name, value in {**target.environment, **started_with}.items()
            if name.startswith("HOROVOD_") and has_public_value(name)  # the order that holds them is a file
        }

    def free(self, space: JobSpace) -> frozenset[str]:
        """The knobs that the next trial of this start may turn; none where it must be the last one."""
        touched = [knob for knob, variable in NEVER_BOTH.items() if variable in self.now]
        if self.follow_ups == MAX_FOLLOW_UPS or len(touched) == len(NEVER_BOTH):
            return frozenset()
        kept = next(iter(touched), list(NEVER_BOTH)[self.turn % len(NEVER_BOTH)])
        left_alone = set(NEVER_BOTH) - {kept}
        return frozenset(one.knob for one in space.dimensions if one.at_init and one.knob not in left_alone)

    def variables(self, space: JobSpace, settings: Settings, wanted: Mapping[str, str]) -> dict[str, str]:
        """What Horovod is to read for these settings, given the variables that a fresh start would have."""
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
