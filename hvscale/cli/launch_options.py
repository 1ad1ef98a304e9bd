"""The options of every command that starts ranks."""

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hvscale.cli.model_options import ModelCommand, parameter
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.terminal import printable
from hvscale.launch.options import OPTIONS, Instrument, LaunchOptions

if TYPE_CHECKING:
    from hvscale.comm_tuning.knobs.settings import Setting

# For `without`: what is not asked of commands that start many jobs, and of those whose jobs are of
# several kinds.
SUBMISSION = ("sbatch", "submit", "sbatch_option")
OF_ONE_JOB = ("collectives", *SUBMISSION)
KNOBS = ("set", "settings")
RECORDING = ("record", "record_dir")
# Switches of `profile` and `launch` that a job script does not pass on.
NOT_SUBMITTED = ("timeline", "gradients", "autotune", "autotune_steps")
# Options of `profile` for the table that it prints when the job has ended.
OF_THE_TABLE = ("bins", "per_rank", "explain", "json", "csv")

RunPath = parameter("run", OPTIONS["run"], is_argument=False)[0]


def launch_command(without: Collection[str] = (), resolved: bool = True, recording: bool = False) -> type[ModelCommand]:
    """For `app.command(cls=...)`: a command with the options of a launch, but for those of
    `without`; those about what is recorded only with `recording`.

    `launch_options` gives them to it: with `resolved` for its argument `command`, or for programs
    of its own, else as they were given, because it starts several flavours.
    """

    hidden = {*without, *(() if recording else RECORDING)}
    shown = {name: field for name, field in OPTIONS.items() if name not in hidden}

    class LaunchCommand(ModelCommand):
        fields = shown

        def invoke(self, ctx: Any) -> Any:
            values = self.take_values(ctx)
            if not was_given(ctx, "devices"):  # a settings file may then choose it
                values.pop("devices", None)
            options = LaunchOptions.of(**values)
            command = list(ctx.params.get("command") or [])
            switches = [name for name in NOT_SUBMITTED if ctx.params.get(name)]
            check_submission(options, switches, self.name or "launch")
            ctx.obj = resolve(command, options) if resolved else options
            if resolved and options.placement.sbatch is not None and not options.placement.submit:
                check_table_options(ctx)
                return write_script(self.name, command, ctx.obj)
            return super().invoke(ctx)

    return LaunchCommand


def check_submission(options: LaunchOptions, switches: list[str], verb: str) -> None:
    """Raises RequestError if a job that Slurm starts later would lose one of the `switches`, or an
    option of its placement.
    """
    from hvscale.launch import placements
    from hvscale.launch.placements._slurm_job import is_inside_an_allocation

    placement = options.placement
    later = placement.sbatch is not None or (placement.submit and not is_inside_an_allocation())
    if later and switches:
        switch = f"--{switches[0].replace('_', '-')}"
        raise RequestError(
            f"{switch} is not passed to a job that Slurm starts later: run `hvscale {verb} {switch}` inside an "
            "allocation, with salloc or in a job script of your own"
        )
    if later:
        placements.choose(placement)


def check_table_options(context: typer.Context) -> None:
    """Raises RequestError for an option of the table, which a job script does not pass on."""
    for name in OF_THE_TABLE:
        if was_given(context, name):
            flag = f"--{'no-' if context.params[name] is False else ''}{name.replace('_', '-')}"
            raise RequestError(
                f"{flag} is not passed on to a job script: leave it out, and run `hvscale breakdown RUN {flag}` after the job"
            )


def write_script(verb: str | None, command: list[str], options: LaunchOptions) -> None:
    """Write the job script that --sbatch asks for."""
    from hvscale.launch.placements._slurm_job import write_job_script

    print(printable(write_job_script(verb or "launch", command, options), sys.stdout))


def launch_options(context: typer.Context) -> LaunchOptions:
    """Those that the command was given."""
    options: LaunchOptions = context.obj
    return options


def was_given(context: typer.Context, name: str) -> bool:
    """Whether the command line has this option, so that its value is not the default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def collectives_hook(options: LaunchOptions) -> Instrument | None:
    """What gives a job the table of --collectives."""
    if options.collectives is None:
        return None
    from hvscale.comm_tuning.collectives.instrument import CollectivesInstrument

    return CollectivesInstrument(options.collectives)


def check_autotune(autotune: bool, steps: int | None) -> None:
    """Raises RequestError for --autotune-steps without --autotune."""
    if steps is not None and not autotune:
        raise RequestError("--autotune-steps has no effect without --autotune: add it, or leave out --autotune-steps")


def check_no_study(run: Path | None) -> None:
    """Raises RequestError if the folder of a new run holds a study."""
    from hvscale.studies.run_index.entry import find_study

    study = find_study(run) if run is not None else None
    if study is not None and study.is_in_its_folder:
        raise RequestError(f"{run} holds a study ({study.path.name}): give another folder with --run")


def start_tuned(
    command: list[str],
    options: LaunchOptions,
    autotune: bool,
    steps: int | None,
    start: Callable[[Instrument | None], RunFolder],
) -> RunFolder:
    """Start a job by `start`, which gets the instrument of --autotune, or None without it."""
    check_autotune(autotune, steps)
    check_no_study(options.run)
    if not autotune:
        return start(None)
    from hvscale.cli.console import print_message, print_warning
    from hvscale.comm_tuning.autotune.job import STEPS, Autotune

    return Autotune(command, options, steps or STEPS, print_warning).launch(start, print_message)


def resolve(command: list[str], options: LaunchOptions) -> LaunchOptions:
    """The options with what --settings and --set ask for in `transport`, `devices` and `env`.

    Raises RequestError for what the job's libraries cannot do, and for a file that is not what it
    should be.
    """
    file_settings: list[Setting] = []
    if options.settings is not None:
        from hvscale.comm_tuning.knobs.settings_file import with_settings_file

        options, file_settings = with_settings_file(options.settings, options)
    if options.set or file_settings:
        options = set_knobs(command, options, file_settings)
    if options.collectives is not None:
        from hvscale.comm_tuning.collectives.instrument import CollectivesInstrument

        CollectivesInstrument(options.collectives).check(options.mpi)
    return options


def check_knobs(command: list[str], options: LaunchOptions, nps: Collection[int]) -> None:
    """Raises RequestError for a value of --set that a library does not use on one of these numbers
    of ranks.
    """
    if options.set:
        from hvscale.comm_tuning.knobs.settings import check_ranks, parse, target_of

        settings = parse(options.set)
        for np in nps:
            check_ranks(settings, target_of(settings, command, options), np)


def set_knobs(command: list[str], options: LaunchOptions, file_settings: list["Setting"]) -> LaunchOptions:
    """The options with what --set and the file of --settings ask for; a job that Slurm is to start
    sets its knobs where its libraries are.
    """
    from hvscale.comm_tuning.knobs.settings import parse, with_settings
    from hvscale.launch.placements._slurm_job import is_inside_an_allocation

    requests: list[str | Setting] = [*options.set, *file_settings]
    placement = options.placement
    if placement.sbatch is not None or (placement.submit and not is_inside_an_allocation()):
        return options.replace(set=tuple(map(str, parse(requests))))
    return with_settings(requests, command, options)
