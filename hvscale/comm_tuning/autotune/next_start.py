"""What a tuned job could try at its next start: knobs that it could not change while it ran."""

import shlex

from hvscale.comm_tuning.autotune.rank_side.search import MIN_WAIT
from hvscale.comm_tuning.knobs.library import Target, libraries_of
from hvscale.comm_tuning.knobs.settings import OPTIONS, given_in, parse, target_of, translate
from hvscale.comm_tuning.tune.document import KnobChoice
from hvscale.comm_tuning.tune.job_profile import JobProfile, OperationMessages, from_record
from hvscale.comm_tuning.tune.job_space import choices, without_orphans
from hvscale.core.autotune_result import AutotuneResult, NextStart, ProposedKnob
from hvscale.core.run_folder import RunRecord
from hvscale.launch.environment import env_variables
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions

SUBMISSION = ("sbatch", "submit", "sbatch_option")  # tune starts its jobs itself


def next_start(
    result: AutotuneResult, command: list[str], options: LaunchOptions, record: RunRecord
) -> NextStart | None:
    """The knobs and the command that tries them; None if nothing is known that can help.

    What the job has proven stays fixed. Raises RequestError for options that do not fit the job.
    """
    if result.wait_share is None or result.wait_share < MIN_WAIT or options.collectives is not None:
        return None  # tune takes no table of collectives
    fixed = {**{setting.knob: setting.text for setting in parse(options.set)}, **result.settings}
    target = target_of([], command, options, record.library)
    found = choices(target, profile_of(result, record), None, fixed, given_in(options))
    knobs = [
        ProposedKnob(knob=choice.knob, reason=choice.reason)
        for choice in without_orphans(found)
        if choice.values and choice.knob not in result.live_knobs and (not result.nccl or reaches_nccl(choice, target))
    ]
    if not knobs:
        return None
    names = ",".join(one.knob for one in knobs)
    words = ["hvscale", "tune", *launch_words(command, options), "--knobs", names]
    words += [word for knob, value in fixed.items() for word in ("--fix", f"{knob}={value}")]
    return NextStart(knobs=knobs, command=shlex.join([*words, "--", *command]))


def sentence(found: NextStart, result: AutotuneResult) -> str:
    """The proposal in one line of the log."""
    names = ", ".join(one.knob for one in found.knobs)
    return f"autotune: {result.waiting}; knobs that need a fresh start ({names}) can be tried by: {found.command}"


def profile_of(result: AutotuneResult, record: RunRecord) -> JobProfile:
    """What the tuned steps have shown of the job."""
    return from_record(
        record,
        source="nccl" if result.nccl else "hvprof",
        horovod=True,
        step_bytes=result.fingerprint.gradient_bytes if result.fingerprint else None,
        messages={"allreduce": OperationMessages(calls=1, largest=result.largest_message_bytes, share=1.0)},
    )


def reaches_nccl(choice: KnobChoice, target: Target) -> bool:
    """Whether the knob belongs to more than the MPI library, which carries no gradients of NCCL."""
    return any(
        library.flavours is None and any(one.knob == choice.knob for one in library.spellings)
        for library in libraries_of(target.flavour)
    )


def launch_words(command: list[str], options: LaunchOptions) -> list[str]:
    """The job's launch options, for `hvscale tune`.

    Hidden variables of --env stand there with their names alone.
    """
    settings = parse(options.set)  # --fix takes the place of --set, with all that it implies
    translated = translate(settings, target_of(settings, command, options))
    implied = {**translated.also_set, **translated.variables, **translated.preload}
    placement = options.placement.model_dump(exclude_unset=True)
    of_options = {field: option for option, field in OPTIONS.items()}
    own = {
        name: getattr(options, name)
        for name in ("mpi", "devices", "transport")
        if getattr(options, name)
        not in (LaunchOptions.model_fields[name].default, translated.options.get(of_options.get(name, "")))
    }
    launch = LaunchOptions(
        np=options.np,
        env=tuple(f"{name}={word}" for name, word in env_variables(options.env).items() if implied.get(name) != word),
        placement=PlacementOptions(**{name: value for name, value in placement.items() if name not in SUBMISSION}),
        start_timeout=options.start_timeout,
        **own,
    )
    return [word for part in launch.recorded().command_line() for word in part]
