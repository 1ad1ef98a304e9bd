"""Translates `--set KNOB=VALUE` to the variables and options of one job."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hvscale.comm_tuning.knobs.library import MEANING, KnobLibrary, Spelling, Target, libraries, libraries_of
from hvscale.comm_tuning.knobs.values import Value, nearest_value
from hvscale.comm_tuning.knobs.variable_list import is_within
from hvscale.core.built_library import built_library, preloaded
from hvscale.core.errors import ConflictError, RequestError
from hvscale.core.run_folder import Library as MpiLibrary
from hvscale.core.suggest import nearest_name
from hvscale.launch import environment, flavours
from hvscale.launch.environment import env_variables
from hvscale.launch.options import LaunchOptions

# Launch options that are also knobs, with their fields of LaunchOptions.
OPTIONS = {"--transport": "transport", "--devices": "devices"}
TRANSPORT = "transport"
# Knobs whose values differ between libraries: one library that accepts the value is enough.
ONE_ACCEPTS = (TRANSPORT, "visible_devices")


@dataclass(frozen=True)
class Setting:
    """A knob with the value that the user typed after `option`."""

    knob: str
    text: str
    option: str = field(default="--set", compare=False)

    def __str__(self) -> str:
        return f"{self.knob}={self.text}"

    @property
    def typed(self) -> str:
        return f"{self.option} {self}"


@dataclass
class Translated:
    """The variables and options that settings translate to.

    `written_by`: the setting of each variable and option. `separators`: of the variables that are
    lists. `also_set`: further variables that these require. `preload`: LD_PRELOAD with the
    libraries that they require and those of the user; empty if they require none.
    """

    variables: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    written_by: dict[str, Setting] = field(default_factory=dict)
    separators: dict[str, str] = field(default_factory=dict)
    also_set: dict[str, str] = field(default_factory=dict)
    preload: dict[str, str] = field(default_factory=dict)

    def agrees(self, name: str, given: str) -> bool:
        """Whether this value, which the user gave the variable, contradicts no setting."""
        if name in self.separators:
            return is_within(given, self.variables[name], self.separators[name])
        return given == self.variables[name]


def parse(requests: Iterable[str | Setting], option: str = "--set") -> list[Setting]:
    """Parses the values of `option`; settings that are parsed already stay as they are.

    Raises RequestError for an unknown knob, a missing value, and a knob with two values.
    """
    found: dict[str, Setting] = {}
    for request in requests:
        setting = request if isinstance(request, Setting) else parse_one(request, option)
        other = found.setdefault(setting.knob, setting)
        if other.text != setting.text:
            raise RequestError(f"{setting.typed}: {setting.knob} is also set to {other.text}; set it once")
    return list(found.values())


def parse_one(request: str, option: str) -> Setting:
    knob, equals, text = (part.strip() for part in request.partition("="))
    knob = knob.replace("-", "_")
    if knob not in MEANING:
        raise RequestError(f"{option} {request}: {unknown_knob(knob)}")
    if not equals or not text:
        raise RequestError(f"{option} {request}: the value is missing; write KNOB=VALUE, such as cuda_ipc=off")
    return Setting(knob, text, option)


def unknown_knob(knob: str) -> str:
    """The error message for an unknown knob."""
    nearest = nearest_name(knob, MEANING)
    suggestion = f"did you mean {nearest}? " if nearest else ""
    return f"unknown knob; {suggestion}`hvscale knobs` lists them"


def translate(settings: list[Setting], target: Target) -> Translated:
    """Translates the settings for each library of the job that has the knob.

    Raises RequestError for a knob that no library has, an invalid value, two settings that need the
    same variable, and a C library that was not built.
    """
    translated = Translated()
    for setting in settings:
        for spelling, value in accepting_spellings(setting, target):
            for name, word in spelling.write_into(target.environment, value).items():
                into = translated.options if spelling.is_option else translated.variables
                if into.setdefault(name, word) != word:
                    raise RequestError(
                        f"{translated.written_by[name].typed} and {setting.typed} both need {name}: use one of them, "
                        f"or --env {name}=VALUE"
                    )
                translated.written_by[name] = setting
                if spelling.separator:
                    translated.separators[name] = spelling.separator
            if not spelling.is_option:
                translated.also_set |= spelling.required_variables(value)
            if spelling.preloads(value):
                translated.preload = preloaded(
                    built_library(spelling.preload), {**target.environment, **translated.preload}
                )
    return translated


def accepting_spellings(setting: Setting, target: Target) -> list[tuple[Spelling, Value]]:
    """The spellings in the job that accept the setting, each with the parsed value.

    Raises RequestError if no library of the job accepts it.
    """
    certain, possible = spellings_in(target, setting.knob)
    candidates = certain or possible
    if not candidates:
        raise RequestError(f"{setting.typed}: {why_unsupported(setting.knob, target)}")
    accepted, rejections, nearest = [], [], None
    for library, spelling in candidates:
        try:
            accepted.append((spelling, spelling.values.parse(setting.text)))
        except ValueError:
            rejections.append(f"{library.name} accepts {spelling.values.accepted}")
            nearest = nearest or nearest_value(setting.text, spelling.values)
    if rejections and not (accepted and setting.knob in ONE_ACCEPTS):
        suggestion = f"did you mean {setting.knob}={nearest}? " if nearest else ""
        raise RequestError(
            f"{setting.typed}: {suggestion}{'; '.join([*rejections, *accepted_elsewhere(setting, target)])}"
        )
    return accepted


def check_ranks(settings: list[Setting], target: Target, np: int) -> None:
    """Raises RequestError for a setting that a library does not use on so many ranks."""
    for setting in settings:
        for spelling, value in accepting_spellings(setting, target):
            if not spelling.supports(str(value), np):
                needs = spelling.rank_limits[str(value)].needs
                raise RequestError(f"{setting.typed}: it needs {needs}, not {np}: use another algorithm or another -np")


def accepted_elsewhere(setting: Setting, target: Target) -> list[str]:
    """A message that names the libraries outside the job that accept the setting; empty if none."""
    names = []
    for library in libraries():
        for one in library.spellings:
            if one.knob == setting.knob and not (library.supports_flavour(target.flavour) and library.in_job(target)):
                with suppress(ValueError):
                    one.values.parse(setting.text)
                    names.append(library.name)
    return [f"{setting.text} needs {' or '.join(names)}, which this job does not use"] if names else []


def spellings_in(
    target: Target, knob: str
) -> tuple[list[tuple[KnobLibrary, Spelling]], list[tuple[KnobLibrary, Spelling]]]:
    """The spellings of the knob in libraries that the job uses, and in those that it may use."""
    found: dict[bool, list[tuple[KnobLibrary, Spelling]]] = {True: [], False: []}
    for library in libraries_of(target.flavour):
        used = library.in_job(target)
        if used is not False:
            found[used is True] += [
                (library, one) for one in spellings_over(library, target.transport) if one.knob == knob
            ]
    return found[True], found[False]


def spellings_over(library: KnobLibrary, transport: str) -> list[Spelling]:
    """The library's spellings over this transport; all for "auto", which may be any transport."""
    return [one for one in library.spellings if one.transport in (None, transport) or transport == "auto"]


def why_unsupported(knob: str, target: Target) -> str:
    """Why no library of the job has the knob, and which libraries or transports do."""
    having = [(library, one) for library in libraries() for one in library.spellings if one.knob == knob]
    transports = {
        one.transport for library, one in having if library.supports_flavour(target.flavour) and one.transport
    }
    if transports:
        return (
            f"{target.flavour} does not have this knob over {target.transport or 'its transport'}; use --transport "
            f"{' or '.join(sorted(transports))}"
        )
    names = list(dict.fromkeys(library.name for library, _ in having))
    return f"{target.flavour} {target.version} does not have this knob; only {', '.join(names)} have it"


def given_in(options: LaunchOptions) -> dict[str, str]:
    """The variables of --env, and the launch options that are also knobs, that the user gave."""
    given = {option: getattr(options, name) for option, name in OPTIONS.items() if is_given(options, name)}
    return {**given, **env_variables(options.env)}


def is_given(options: LaunchOptions, name: str) -> bool:
    return name in options.model_fields_set and getattr(options, name) is not None


def with_settings(
    requests: Iterable[str | Setting], command: list[str], options: LaunchOptions, option: str = "--set"
) -> LaunchOptions:
    """The options with these values of `--set`, or of `option`, applied.

    Raises RequestError for settings that the job's libraries do not support, and ConflictError for
    those of which the options ask for another value.
    """
    settings = parse(requests, option)
    given = given_in(options)
    target = target_of(settings, command, options)
    translated = translate(settings, target)
    check_ranks(settings, target, options.np)
    changes: dict[str, Any] = {"set": tuple(map(str, settings))}
    for name, word in translated.options.items():
        if given.get(name, word) != word:
            raise conflict(f"{name} {given[name]}", translated.written_by[name], options)
        changes[OPTIONS[name]] = word
    for name in translated.variables:
        if name in given and not translated.agrees(name, given[name]):
            raise conflict(f"--env {name}={given[name]}", translated.written_by[name], options)
    also_set = {name: word for name, word in translated.also_set.items() if name not in given}
    changed = {name: word for name, word in translated.variables.items() if given.get(name) != word}
    added = {**also_set, **changed, **translated.preload}
    return options.replace(**changes, env=(*options.env, *(f"{name}={word}" for name, word in added.items())))


def conflict(given: str, setting: Setting, options: LaunchOptions) -> ConflictError:
    """The error for a setting that contradicts a given option, or an earlier --set of its knob."""
    applied = next((f"--set {one}" for one in parse(options.set) if one.knob == setting.knob and one != setting), None)
    return ConflictError(f"{applied or given} and {setting} ask for different values: remove one of them")


def target_of(
    settings: list[Setting], command: list[str], options: LaunchOptions, library: MpiLibrary | None = None
) -> Target:
    """The job that a launch with these options would start.

    `library`: the MPI library of the job, by default the installed one. Raises RequestError if the
    MPI is not installed.
    """
    flavour = flavours.get(options.mpi)
    passed = environment.job_environment(flavour, options.env)
    library = library or flavour.find(passed)
    asked = [options.transport, *(one.text for one in settings if one.knob == TRANSPORT)]
    wanted = [name for name in asked if name is not None]
    built_with = (library.transports or flavour.transports(library, passed)) if wanted else []
    transport = next((name for name in wanted if name in built_with), library.transport)
    return Target(flavour.name, library.version, transport, command, passed)
