"""Reads the file of `--settings`: knobs, and the launch options they were measured with."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, ValidationError

from hvscale.comm_tuning.knobs.settings import OPTIONS, Setting, is_given, parse
from hvscale.core.documents import VersionedDocument, read_toml
from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name
from hvscale.launch.options import LaunchOptions

# The knobs that are also launch options.
KNOBS = {"--transport": "transport", "--devices": "visible_devices"}


def words(value: Any) -> Any:
    """A number or boolean of the file, as --set spells it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, int | float) else value


class SettingsFile(VersionedDocument):
    """The content of the file.

    `mpi`: the flavour that the settings were measured on. `set`: values by knob, as for --set.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["hvscale/settings/1"] = "hvscale/settings/1"
    mpi: str
    transport: str | None = None
    devices: str | None = None
    set: dict[str, Annotated[str, BeforeValidator(words)]] = {}


def read_settings(path: Path) -> SettingsFile:
    """Read the file.

    Raises RequestError, naming the key, if the file is unreadable, is invalid, or has an unknown
    key or knob.
    """
    found = read_toml(SettingsFile, path, f"--settings {path}", problem)
    settings_of(found, path)
    return found


def problem(error: ValidationError) -> str:
    """The first error with its key."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    is_unknown = first["type"] == "extra_forbidden"
    return f"{key}: {suggest_name('key', key, sorted(keys())) if is_unknown else first['msg']}"


def keys() -> list[str]:
    return [field.alias or name for name, field in SettingsFile.model_fields.items()]


def settings_of(file: SettingsFile, path: Path) -> list[Setting]:
    """The settings in the file. Raises RequestError, naming the file, for an unknown knob."""
    return parse([f"{knob}={text}" for knob, text in file.set.items()], option=f"--settings {path}:")


def with_settings_file(path: Path, options: LaunchOptions) -> tuple[LaunchOptions, list[Setting]]:
    """The options with the file's launch options, and the settings of the file that are still to
    apply; the command line takes precedence over both.

    Raises RequestError for a file that was made for another --mpi, because its settings were
    measured only on that library.
    """
    file = read_settings(path)
    if file.mpi != options.mpi:
        raise RequestError(
            f"--settings {path} was made for --mpi {file.mpi}, but this job uses --mpi {options.mpi}: add --mpi {file.mpi}, or copy "
            "single settings from the file to --set"
        )
    changes: dict[str, Any] = {"settings": None}
    given = {setting.knob for setting in parse(options.set)}
    settings = settings_of(file, path)
    for option, name in OPTIONS.items():
        of_file = getattr(file, name)
        if is_given(options, name):
            given.add(KNOBS[option])
        elif of_file is not None and KNOBS[option] not in {*given, *(setting.knob for setting in settings)}:
            changes[name] = of_file
    return options.replace(**changes), [setting for setting in settings if setting.knob not in given]
