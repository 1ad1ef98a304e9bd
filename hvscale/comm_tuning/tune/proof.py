"""The proof: a plan that compares the best settings with the defaults in pairs of fresh starts."""

from collections.abc import Generator
from dataclasses import replace

from hvscale.comm_tuning.tune import scores
from hvscale.comm_tuning.tune.document import Pair, Proof
from hvscale.comm_tuning.tune.job_space import JobSettings
from hvscale.comm_tuning.tune.plan import FreshStart, OneTrial, Plan, SameStart, TrialOutcome
from hvscale.comm_tuning.tune.search import TuneProgress
from hvscale.comm_tuning.tune.steps import recording_of
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate, estimate
from hvscale.profiling.analyze.bytes_per_step import find_bytes_per_step
from hvscale.profiling.compare import compare

OnePair = Generator[FreshStart | SameStart, TrialOutcome, Pair | None]


def was_interrupted(study: TuneStudy) -> bool:
    """Whether an earlier call was interrupted during the proof."""
    document = study.document
    return document.proof is not None and document.winner is None and len(document.proof.pairs) < study.request.pairs


def prove(study: TuneStudy, progress: TuneProgress) -> Plan:
    """Measure the best settings and the defaults in pairs.

    The settings are accepted only if they never fail and the whole interval of the gain is above 1.
    Raises RankFailedError or UntrustedError if the defaults fail.
    """
    document, pairs = study.document, study.request.pairs
    finalists = [one for one in scores.finalists(document.trials) if dict(one) not in document.failed_in_proof]
    if not finalists:
        document.proof, document.winner = None, {}
        return
    settings = dict(sorted(finalists[0]))
    proof = document.proof
    if proof is None or proof.settings != settings:
        proof = Proof(settings=settings, pairs=[], gain=Estimate(mean=1, low=None, high=None), accepted=False)
    document.proof, document.winner = proof, None
    while len(proof.pairs) < pairs:
        number = len(proof.pairs) + 1
        study.write("running")
        progress.pair_begins(settings, number, pairs)
        pair = yield from measure_pair(study, settings, number)
        if pair is None:
            document.failed_in_proof.append(settings)
            document.winner = {}
            return
        proof.pairs.append(pair)
        proof.gain = estimate([one.tuned / one.default for one in proof.pairs])
    proof.accepted = proof.gain.low is not None and proof.gain.low > 1
    document.winner = settings if proof.accepted else {}
    compare_profiles(study, proof)


def measure_pair(study: TuneStudy, settings: JobSettings, number: int) -> OnePair:
    """One pair; None if the settings failed.

    The order alternates, so that drift of the machine favours neither side.
    """
    order = ("default", "tuned") if number % 2 else ("tuned", "default")
    folders = {name: study.free_name(f"proof-{number}-{name}") for name in order}
    throughput: dict[str, float] = {}
    for name in order:
        outcome = yield from measure(study, settings if name == "tuned" else {}, folders[name])
        if outcome.state != "measured" or outcome.throughput is None:
            problem = f"{outcome.problem}. See {outcome.run.path}"
            if name == "default":
                raise outcome.failure or UntrustedError(f"with the defaults: {problem}")
            study.warn(f"the best settings failed in the proof, so the defaults are kept: {problem}")
            return None
        throughput[name] = outcome.throughput.mean
    return Pair(
        default=throughput["default"],
        tuned=throughput["tuned"],
        default_run=folders["default"],
        tuned_run=folders["tuned"],
    )


def measure(study: TuneStudy, settings: JobSettings, folder: str) -> OneTrial:
    """One start without early stop; its state is "wrong sums" if its losses show them."""
    outcome = yield FreshStart(settings, study.limits, folder=folder)
    if not settings:
        study.compare_losses_of_defaults(outcome.run)
    problem = study.wrong_losses(outcome.run) if outcome.state == "measured" else None
    return replace(outcome, state="wrong sums", problem=problem) if problem is not None else outcome


def compare_profiles(study: TuneStudy, proof: Proof) -> None:
    """Compare the communication of the last pair."""
    last = proof.pairs[-1]
    before, after = (RunFolder(study.path / name) for name in (last.default_run, last.tuned_run))
    try:
        bytes_per_step = study.source.share or find_bytes_per_step(recording_of(before))[0]
        study.document.profile = compare(before, after, bytes_per_step=bytes_per_step)
    except (RequestError, UntrustedError) as error:
        study.warn(f"the profiles before and after cannot be compared: {error}")
