"""Runs one call of `hvscale tune`: the search, the proof and the outputs.

Only `carry_out` starts jobs, one after the other.
"""

from collections.abc import Callable
from contextlib import closing

from hvscale.comm_tuning.tune.outputs import write_outputs
from hvscale.comm_tuning.tune.plan import FreshStart, Plan, advance
from hvscale.comm_tuning.tune.proof import prove, was_interrupted
from hvscale.comm_tuning.tune.search import Search, TuneProgress
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.comm_tuning.tune.trial_monitor import TrialMonitor
from hvscale.core.errors import RankFailedError
from hvscale.core.run_folder import RunFolder
from hvscale.core.trial_protocol import TrialFolder
from hvscale.launch.options import LaunchHooks
from hvscale.studies.profiled_launch import profiled_launch


def run_study(study: TuneStudy, progress: TuneProgress, warn: Callable[[str], None]) -> None:
    """Search, prove and write the outputs; resume an earlier call. Measurements are always kept.

    Raises RequestError if the folder belongs to something else or is locked, RankFailedError and
    UntrustedError if the command fails with the defaults or shows no step, and RunInterruptedError.
    """
    with study.opened(warn):
        if not was_interrupted(study):
            carry_out(study, Search(study, progress).plan())
        carry_out(study, prove(study, progress))
        study.document.state = "finished"  # the outputs show it; tune.json follows once they are written
        write_outputs(study.path, study.document)


def carry_out(study: TuneStudy, plan: Plan) -> None:
    """Run the plan to its end. Raises what the plan and a launch raise, after closing the plan."""
    with closing(plan):
        following = advance(plan, None)
        while following is not None:
            if not isinstance(following, FreshStart):
                raise TypeError("a plan must begin with a fresh start")
            following = run_job(study, following, plan)


def run_job(study: TuneStudy, start: FreshStart, plan: Plan) -> FreshStart | None:
    """Run one job with all trials that the plan places in it; return the plan's next start."""
    run = RunFolder(study.path / start.folder)
    commands = TrialFolder(run.path) if study.takes_commands else None
    if commands is not None:
        commands.path.mkdir(parents=True)
    monitor = TrialMonitor(run, start, study.source, plan, commands)
    failure = None
    try:
        options = study.request.options_with(start.settings).replace(run=run.path)
        profiled_launch(study.document.command, options, LaunchHooks(warn=study.warn, watch=monitor.watch))
    except RankFailedError as error:
        failure = error
    monitor.job_ended(failure)
    study.check_library(run)
    return monitor.next_start
