"""Translates `--set KNOB=VALUE` to the variables and options of one job."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, Target, libraries, libraries_of
from hvscale.comm_tuning.knobs.meaning import MEANING
from hvscale.comm_tuning.knobs.values import Value, nearest_value
from hvscale.core.errors import RequestError
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
    """A knob with the value that the user typed."""

    knob: str
    text: str

    def __str__(self) -> str:
        return f"{self.knob}={self.text}"


@dataclass
class Translated:
    """What settings mean to one job.

    `variables` and `options`: what was asked for; `also_set`: variables that these need.
    """

    variables: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    also_set: dict[str, str] = field(default_factory=dict)


def parse(requests: Iterable[str], option: str = "--set") -> list[Setting]:
    """The settings that `option` asks for.

    Raises RequestError for an unknown knob, one without a value, and one given twice.
    """
    found: dict[str, Setting] = {}
    for request in requests:
        knob, equals, text = (part.strip() for part in request.partition("="))
        knob = knob.replace("-", "_")
        if knob not in MEANING:
            raise RequestError(f"{option} {request}: {unknown_knob(knob)}")
        if not equals or not text:
            raise RequestError(f"{option} {request}: the value is missing; write KNOB=VALUE, such as cuda_ipc=off")
        if knob in found and found[knob].text != text:
            raise RequestError(f"{option} {request}: {knob} is also set to {found[knob].text}; set it once")
        found[knob] = Setting(knob, text)
    return list(found.values())


def unknown_knob(knob: str) -> str:
    """What to say about it."""
    nearest = nearest_name(knob, MEANING)
    meant = f"did you mean {nearest}? " if nearest else ""
    return f"unknown knob; {meant}`hvscale knobs` lists them"


def translate(settings: list[Setting], target: Target) -> Translated:
    """What the settings mean in each library of the job that has the knob.

    Raises RequestError for a knob that none of them has, an invalid value, and two settings that
    need one variable.
    """
    translated = Translated()
    wrote: dict[str, Setting] = {}
    for setting in settings:
        for spelling, value in takers(setting, target):
            for name, word in spelling.write(value).items():
                into = translated.options if spelling.is_option else translated.variables
                if into.setdefault(name, word) != word:
                    raise RequestError(
                        f"--set {wrote[name]} and --set {setting} both need {name}: use one of them, or --env {name}=VALUE"
                    )
                wrote[name] = setting
            if not spelling.is_option:
                translated.also_set |= spelling.also_needed(value)
    return translated


def takers(setting: Setting, target: Target) -> list[tuple[Spelling, Value]]:
    """The spellings that accept the setting, with its value.

    Raises RequestError when no library of the job accepts it.
    """
    sure, perhaps = spellings_in(target, setting.knob)
    here = sure or perhaps
    if not here:
        raise RequestError(f"--set {setting}: {why_not(setting.knob, target)}")
    taken, refusing, nearest = [], [], None
    for library, spelling in here:
        try:
            taken.append((spelling, spelling.values.parse(setting.text)))
        except ValueError:
            refusing.append(f"{library.name} takes {spelling.values.takes}")
            nearest = nearest or nearest_value(setting.text, spelling.values)
    if refusing and not (taken and setting.knob in ONE_ACCEPTS):
        meant = f"did you mean {setting.knob}={nearest}? " if nearest else ""
        raise RequestError(f"--set {setting}: {meant}{'; '.join([*refusing, *elsewhere(setting, target)])}")
    return taken


def elsewhere(setting: Setting, target: Target) -> list[str]:
    """Names the libraries that accept the setting but are not in the job; empty without any."""
    names = []
    for library in libraries():
        for one in library.spellings:
            if one.knob == setting.knob and not (library.may_be_in(target.flavour) and library.in_job(target)):
                with suppress(ValueError):
                    one.values.parse(setting.text)
                    names.append(library.name)
    return [f"{setting.text} is known to {', '.join(names)}, which this job does not have"] if names else []


def spellings_in(
    target: Target, knob: str
) -> tuple[list[tuple[KnobLibrary, Spelling]], list[tuple[KnobLibrary, Spelling]]]:
    """How the job's libraries spell the knob.

    First those that it uses, then those where only its run shows whether it does.
    """
    found: dict[bool, list[tuple[KnobLibrary, Spelling]]] = {True: [], False: []}
    for library in libraries_of(target.flavour):
        used = library.in_job(target)
        if used is not False:
            found[used is True] += [
                (library, one) for one in of_transport(library, target.transport) if one.knob == knob
            ]
    return found[True], found[False]


def of_transport(library: KnobLibrary, transport: str) -> list[Spelling]:
    """The library's spellings over this transport; all for "auto", which may be any."""
    return [one for one in library.spellings if one.transport in (None, transport) or transport == "auto"]


def why_not(knob: str, target: Target) -> str:
    """Why no library of the job has the knob, and which ones do."""
    having = [(library, one) for library in libraries() for one in library.spellings if one.knob == knob]
    carried = {one.transport for library, one in having if library.may_be_in(target.flavour) and one.transport}
    if carried:
        return (
            f"{target.flavour} has no such knob over {target.transport or 'its transport'}; it has one over "
            f"{' or '.join(sorted(carried))} (--transport)"
        )
    names = list(dict.fromkeys(library.name for library, _ in having))
    return f"{target.flavour} {target.version} has no such knob; known to {', '.join(names)}"


def given_in(options: LaunchOptions) -> dict[str, str]:
    """The variables, and the options that a knob may be spelled as, that were given."""
    given = {option: getattr(options, name) for option, name in OPTIONS.items() if is_given(options, name)}
    return {**given, **env_variables(options.env)}


def is_given(options: LaunchOptions, name: str) -> bool:
    return bool(getattr(options, name) != LaunchOptions.model_fields[name].default)


def with_settings(requests: Iterable[str], command: list[str], options: LaunchOptions) -> LaunchOptions:
    """The options with what these values of `--set` ask for.

    Raises RequestError for what cannot be done.
    """
    settings = parse(requests)
    asked = given_in(options)
    translated = translate(settings, target_of(settings, command, options))
    changes: dict[str, Any] = {"set": tuple(map(str, settings))}
    for option, word in translated.options.items():
        if asked.get(option, word) != word:
            raise RequestError(f"{option} {asked[option]} and --set ask for different things: give one of them")
        changes[OPTIONS[option]] = word
    for name, word in translated.variables.items():
        if asked.get(name, word) != word:
            raise RequestError(f"--env {name}={asked[name]} and --set ask for different things: give one of them")
    variables = {**translated.also_set, **translated.variables}
    added = (f"{name}={word}" for name, word in variables.items() if name not in asked)
    return options.replace(**changes, env=(*options.env, *added))


def target_of(
    settings: list[Setting], command: list[str], options: LaunchOptions, library: MpiLibrary | None = None
) -> Target:
    """The job that a launch with these options would start.

    `library`: what it ran on, by default what is installed.

    Raises RequestError when its MPI is not installed.
    """
    flavour = flavours.get(options.mpi)
    passed = environment.job_environment(flavour, options.env)
    library = library or flavour.find(passed)
    asked = [options.transport, *(one.text for one in settings if one.knob == TRANSPORT)]
    wanted = [name for name in asked if name is not None]
    built_with = (library.transports or flavour.transports(library, passed)) if wanted else []
    transport = next((name for name in wanted if name in built_with), library.transport)
    return Target(flavour.name, library.version, transport, command, passed)
