"""Runs one call of `hvscale tune`: search, proof and outputs.

It resumes what an earlier call has left.
"""

from collections.abc import Callable

from hvscale.comm_tuning.tune.jobs import carry_out
from hvscale.comm_tuning.tune.outputs import write_outputs
from hvscale.comm_tuning.tune.proof import prove, was_interrupted
from hvscale.comm_tuning.tune.search import Search, TuneProgress
from hvscale.comm_tuning.tune.study import TuneStudy


def run_study(study: TuneStudy, progress: TuneProgress, warn: Callable[[str], None]) -> None:
    """Search, then prove. What was measured is kept in any case.

    Raises RequestError for a folder that holds something else or in which another process works;
    RankFailedError and UntrustedError when the command fails with the defaults, or no step of it
    can be seen; RunInterruptedError.
    """
    with study.opened(warn):
        if not was_interrupted(study):
            carry_out(study, Search(study, progress).plan())
        carry_out(study, prove(study, progress))
        study.document.state = "finished"  # the outputs say so; tune.json only once they are written
        write_outputs(study.path, study.document)
