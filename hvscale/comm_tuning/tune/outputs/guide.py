"""The content of the tuning guide, for its Markdown and its HTML."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hvscale import __version__
from hvscale.comm_tuning.knobs.library import MEANING
from hvscale.comm_tuning.knobs.settings import is_given
from hvscale.comm_tuning.tune.document import KnobChoice, Trial, TuneDocument
from hvscale.comm_tuning.tune.job_space import JobSettings
from hvscale.comm_tuning.tune.outputs.commands import ShellCommand, command, commands, launch_words, shell
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, output_formats
from hvscale.comm_tuning.tune.request import MIN_PAIRS
from hvscale.comm_tuning.tune.scores import SUCCEEDED, ratios
from hvscale.comm_tuning.tune.search_space import DEFAULT
from hvscale.comm_tuning.tune.steps import IMAGES_UNIT
from hvscale.core.statistics import Estimate, percent, welch_ratio
from hvscale.core.units import WIDEST_INTERVAL, human_bytes, human_number, human_range, human_seconds, is_narrow
from hvscale.launch.flavours import LIBRARY_DECIDES
from hvscale.profiling.compare import Comparison, Gain
from hvscale.studies.run_report.compare_tables import human_calls, human_gain, human_interval, human_verdict

TEMPLATES = Path(__file__).parent / "templates"
TRIALS_SHOWN = 30
GUIDE = "guide."


@dataclass(frozen=True)
class TrialCells:
    """One row of the table of trials. `settings`: None for the defaults."""

    number: int
    settings: str | None
    state: str
    throughput: str
    interval: str
    gain: str
    problem: str


@dataclass(frozen=True)
class KnobEffect:
    """The effect of one value of a knob.

    `ratio`: throughput of the trials with this value over that of all other trials, each over that
    of the defaults before it, because the machine's speed may change meanwhile. Other knobs
    differ between the trials too, so it is a hint and not a proof.
    """

    knob: str
    value: str
    trials: int
    ratio: Estimate | None

    @property
    def verdict(self) -> str:
        return self.ratio.verdict("faster", "slower") if self.ratio is not None else "unknown"


def effects_of(choice: KnobChoice, document: TuneDocument) -> list[KnobEffect]:
    """The effect of each value that was tried, best first; "default" if the knob was not set."""
    by_value: defaultdict[str, list[float]] = defaultdict(list)
    for trial, ratio in zip(document.trials, ratios(document.trials), strict=True):
        if ratio > 0:
            by_value[trial.settings.get(choice.knob, DEFAULT)].append(ratio)
    found = []
    for value, own in by_value.items():
        others = [one for other, its in by_value.items() if other != value for one in its]
        found.append(KnobEffect(choice.knob, value, len(own), welch_ratio(own, others) if others else None))
    return sorted(found, key=lambda effect: -effect.ratio.mean if effect.ratio else 0)


class Guide:
    """The values for the templates."""

    version = __version__
    meaning = MEANING

    def __init__(self, tuned: TunedJob) -> None:
        self.tuned, self.document = tuned, tuned.document
        self.proof, self.profile = tuned.document.proof, tuned.document.profile
        self.unit = tuned.document.unit or "throughput"

    @property
    def title(self) -> str:
        return f"Tuning guide: {Path(self.document.folder).name}"

    @property
    def command(self) -> str:
        return shlex.join(self.document.command)

    @property
    def job(self) -> str:
        """Where the job ran, in one line."""
        document, library = self.document, self.tuned.library
        parts = [f"np {document.np}", f"{library.flavour} {library.version}".strip()]
        transport = document.transport or self.tuned.transport
        if transport not in (None, "", LIBRARY_DECIDES):
            parts.append(f"messages over {transport}")
        if document.host is not None:
            host = document.host
            gpus = f", {len(host.gpus)} GPUs" if host.gpus else ""
            parts.append(f"{host.name}: {host.cpu}, {host.cores} cores{gpus}")
        return " · ".join(parts)

    @property
    def answer(self) -> str:
        """The result in one sentence."""
        if self.proof is not None and self.proof.accepted:
            return f"Use these settings: throughput {change(self.proof.gain)} over the defaults"
        if self.proof is not None and self.proof.settings in self.document.failed_in_proof:
            return "Keep the defaults: the best settings of the search failed in the proof"
        if self.proof is not None:
            return "Keep the defaults: the best settings of the search are not proven to be faster"
        if self.document.winner == {}:
            return "Keep the defaults: no trial of the search was faster"
        return f"Nothing to use yet: the study is {self.document.state}, and no gain is proven"

    @property
    def why(self) -> str:
        """The evidence for the answer."""
        if self.proof is not None and self.proof.settings in self.document.failed_in_proof:
            return f"A start with {words(self.proof.settings)} failed in pair {len(self.proof.pairs) + 1}."
        if self.proof is not None:
            pairs = f"{len(self.proof.pairs)} pairs of fresh starts, defaults and settings interleaved"
            if self.proof.accepted:
                return f"Over {pairs}; {interval(self.proof.gain)}."
            said = f"Over {pairs}, throughput {change(self.proof.gain)}; {interval(self.proof.gain)}"
            low, high = self.proof.gain.low, self.proof.gain.high
            if low is None or high is None or high < 1 or low > 1:
                return said + "."
            return said + ". The interval includes 0, so the difference may be chance."
        if self.document.winner == {}:
            return "So there was no proof. The files in this folder set nothing."
        return "The files in this folder set only what the study had fixed. Run the same `hvscale tune` command with this folder to resume."

    @property
    def tried(self) -> str:
        """A summary of the search."""
        document = self.document
        states = Counter(trial.state for trial in document.trials)
        starts = len({trial.start for trial in document.trials})
        outcomes = ", ".join(f"{number} {state}" for state, number in states.most_common())
        knobs = [choice.knob for choice in document.space if choice.values]
        said = f"{plural(len(document.trials), 'trial')} in {plural(starts, 'start')} of the job"
        said += f" ({outcomes})" if outcomes else ""
        said += f", over {plural(len(knobs), 'knob')}" if knobs else ""
        if document.fixed:
            said += f", all with {words(document.fixed)}"
        return said + (f". Throughput: {document.measured_by}." if document.measured_by else ".")

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """Each knob of the winner, its value, and its meaning."""
        return [(knob, text, MEANING.get(knob, "")) for knob, text in self.tuned.gained.items()]

    @property
    def not_proven(self) -> str:
        """The best settings of the search, if they were not accepted."""
        return words(self.proof.settings) if self.proof is not None and not self.tuned.gained else ""

    @property
    def sets(self) -> bool:
        """Whether the files set anything."""
        return bool(self.tuned.settings or self.tuned.variables or self.tuned.devices != NO_DEVICES)

    @property
    def steps(self) -> list[ShellCommand]:
        return commands(self.tuned)

    @property
    def files(self) -> list[OutputFormat]:
        """All output files except the guide."""
        return [one for one in output_formats() if one.applies(self.tuned) and not one.file.startswith(GUIDE)]

    def use(self, output: OutputFormat) -> str:
        return output.use(self.tuned)

    @cached_property
    def ratios(self) -> dict[int, float]:
        """By number of the trial: its throughput over that of the defaults before it."""
        trials = self.document.trials
        return {trial.number: ratio for trial, ratio in zip(trials, ratios(trials), strict=True)}

    @property
    def trials(self) -> list[TrialCells]:
        """At most `TRIALS_SHOWN`: the measured ones, then those that stopped early, then the failed
        ones; each group by the ratio to the defaults.

        The best of the defaults and of the settings that were proven are always among them.
        """
        places = {state: place for place, state in enumerate(SUCCEEDED)}
        ranked = sorted(
            self.document.trials,
            key=lambda trial: (places.get(trial.state, len(places)), -self.ratios[trial.number]),
        )
        always: list[JobSettings] = [{}, *([self.proof.settings] if self.proof is not None else [])]
        first = [found[0] for settings in always if (found := [one for one in ranked if one.settings == settings])]
        others = [trial for trial in ranked if trial not in first]
        numbers = {trial.number for trial in [*first, *others[: TRIALS_SHOWN - len(first)]]}
        return [self.row(trial) for trial in ranked if trial.number in numbers]

    @property
    def hidden(self) -> int:
        return max(0, len(self.document.trials) - TRIALS_SHOWN)

    def row(self, trial: Trial) -> TrialCells:
        found, ratio = trial.throughput, self.ratios[trial.number]
        known = found is not None and found.low is not None and found.high is not None
        return TrialCells(
            number=trial.number,
            settings=words(trial.settings) or None,
            state=trial.state,
            throughput=human_number(found.mean, 4) if found else "-",
            interval=f"{human_number(found.low, 4)} to {human_number(found.high, 4)}" if found and known else "-",
            gain=percent(ratio) if ratio and trial.settings else "-",
            problem=trial.problem or "",
        )

    @cached_property
    def effects(self) -> list[list[KnobEffect]]:
        """The effects of the values of each knob that was searched."""
        return [effects_of(choice, self.document) for choice in self.document.space if choice.values]

    @property
    def helped(self) -> list[KnobEffect]:
        """For each knob the accepted value, or else the best value that the trials show faster."""
        shown = []
        for effects in self.effects:
            own = [one for one in effects if self.tuned.gained.get(one.knob) == one.value]
            shown += own or [one for one in effects if one.verdict == "faster" and one.value != DEFAULT][:1]
        return shown

    @property
    def without_effect(self) -> list[tuple[str, str]]:
        """Knobs that were not searched or show no effect, each with the reason."""
        found = [(choice.knob, choice.reason) for choice in self.document.space if not choice.values]
        for effects in self.effects:
            if effects and effects[0].knob not in self.tuned.gained:
                verdicts = {one.verdict for one in effects}
                tried = ", ".join(one.value for one in effects)
                if verdicts <= {"no difference", "unknown"} and "no difference" in verdicts:
                    found.append((effects[0].knob, f"tried {tried}: the trials show no difference"))
        return found

    @property
    def saved(self) -> str:
        """How the communication time changed, and which messages changed most."""
        profile = self.profile
        if profile is None or not profile.rows:
            return ""
        total = profile.total
        said = f"Communication takes {human_seconds(total.seconds_before)} per {profile.per} with the defaults, summed over ranks, and "
        said += f"{human_seconds(total.seconds_after)} with the settings"
        said += f" (95 % interval of the gain: {human_interval(total)} %)" if total.gain_percent_low is not None else ""
        most = max(profile.rows, key=lambda row: abs(row.seconds_before - row.seconds_after))
        less = most.seconds_before - most.seconds_after
        return (
            f"{said}. The largest change is in {most.operation} of {human_range(most.bytes_min, most.bytes_max)}: "
            f"{human_seconds(abs(less))} {'less' if less >= 0 else 'more'}."
        )

    @property
    def repeat(self) -> list[ShellCommand]:
        """Commands that repeat the study, its proof and its profiles."""
        fixed = [["--fix", f"{knob}={text}"] for knob, text in self.document.fixed.items()]
        options = self.tuned.launch
        asked = [name for name in ("transport", "devices") if is_given(options, name)]
        request = self.document.request
        metric = [["--metric", request["metric"]]] if request.get("metric") else []
        limits = [["--knobs", ",".join(request["knobs"])]] if request.get("knobs") else []
        limits += [["--trial-seconds", f"{request['trial_seconds']:g}"]] if "trial_seconds" in request else []
        limits += [["--trials", str(self.document.searched)]] if self.document.searched is not None else []
        pairs = len(self.proof.pairs) if self.proof is not None else 0
        limits += [["--pairs", str(pairs)]] if pairs >= MIN_PAIRS else []
        np = ["-np", str(self.document.np)]
        search = [["hvscale", "tune", *np], *launch_words(self.tuned, asked), *fixed]
        search += [*limits, *metric]
        found = [ShellCommand("the whole study, in a new folder", shell([*search, command(self.tuned)]))]
        file = self.tuned.path("settings.toml")
        title = "only the proof"
        # compare-settings counts neither marked steps nor collectives.
        if not metric and self.unit != IMAGES_UNIT:
            title += "; REGEX finds the throughput in the command's output"
            metric = [["--metric", "REGEX"]]
        if self.tuned.gained and "," not in file:
            proof = ["hvscale", "compare-settings", f"defaults,{file}", *np, "--repeat", str(pairs)]
            found.append(ShellCommand(title, shell([proof, *launch_words(self.tuned), *metric, command(self.tuned)])))
        if self.profile is not None:
            pair = [self.profile.run_before, self.profile.run_after]
            found.append(
                ShellCommand("the profiles before and after, by message size", shell([["hvscale", "compare", *pair]]))
            )
            found.append(ShellCommand("the same as a page", shell([["hvscale", "report", *pair]])))
        return found


NO_DEVICES = "all"


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def words(settings: dict[str, str]) -> str:
    return " ".join(f"{knob}={text}" for knob, text in settings.items())


def change(gain: Estimate) -> str:
    return f"{percent(gain.mean)} ({gain.mean:.3g} times)"


def interval(gain: Estimate) -> str:
    if gain.low is None or gain.high is None:
        return "no confidence interval"
    if not is_narrow(gain.low, gain.high):
        return f"95 % interval wider than a factor of {WIDEST_INTERVAL}"
    return f"95 % interval {percent(gain.low)} to {percent(gain.high)}"


def effect_interval(effect: KnobEffect) -> str:
    found = effect.ratio
    if found is None or found.low is None or found.high is None:
        return "-"
    if not is_narrow(found.low, found.high):
        return f"> factor {WIDEST_INTERVAL}"
    return f"{percent(found.low)} to {percent(found.high)}"


def gain_cells(gain: Gain) -> list[str]:
    seconds = [human_seconds(gain.seconds_before), human_seconds(gain.seconds_after)]
    return [*seconds, human_gain(gain), human_interval(gain), human_verdict(gain)]


def profile_rows(profile: Comparison) -> list[list[str]]:
    """Rows of message, calls before and after, time before and after, gain, interval, change."""
    rows = [
        [
            f"{row.operation} {human_range(row.bytes_min, row.bytes_max)}",
            human_calls(row.calls_before),
            human_calls(row.calls_after),
            *gain_cells(row),
        ]
        for row in profile.rows
    ]
    total = profile.total
    rows.append(["total", human_calls(total.calls_before), human_calls(total.calls_after), *gain_cells(total)])
    if profile.step is not None:
        rows.append(["whole step", "", "", *gain_cells(profile.step)])
    return rows


FILTERS: dict[str, Callable[..., Any]] = {
    "percent": percent,
    "effect_interval": effect_interval,
    "profile_rows": profile_rows,
    "bytes": human_bytes,
}
