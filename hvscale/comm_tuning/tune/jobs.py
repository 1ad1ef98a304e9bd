"""Starts the jobs that a plan asks for, one after the other.

Nothing else in the search starts one.
"""

from contextlib import closing

from hvscale.comm_tuning.tune.plan import FreshStart, Plan, advance
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.comm_tuning.tune.trial_monitor import TrialMonitor
from hvscale.core.errors import RankFailedError
from hvscale.core.run_folder import RunFolder
from hvscale.core.trial_protocol import TrialFolder
from hvscale.launch.options import LaunchHooks
from hvscale.studies.profiled_launch import profiled_launch


def carry_out(study: TuneStudy, plan: Plan) -> None:
    """Run the plan to its end. Raises what the plan and a launch raise, after closing the plan."""
    with closing(plan):
        following = advance(plan, None)
        while following is not None:
            if not isinstance(following, FreshStart):
                raise TypeError("a plan must begin with a fresh start")
            following = run_job(study, following, plan)


def run_job(study: TuneStudy, start: FreshStart, plan: Plan) -> FreshStart | None:
    """Run one job with every trial that the plan places in it.

    Returns the start that the plan wants next.
    """
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
