"""The file of `--settings`: knobs, and the launch options that they were measured with."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, ValidationError

from hvscale.comm_tuning.knobs.settings import OPTIONS, Setting, is_given, parse
from hvscale.core.documents import VersionedDocument
from hvscale.core.errors import RequestError
from hvscale.core.suggest import suggest_name
from hvscale.launch.options import LaunchOptions

# The knob of each launch option that is also a knob.
KNOBS = {"--transport": "transport", "--devices": "visible_devices"}


def words(value: Any) -> Any:
    """A number or a boolean of the file as --set spells it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if isinstance(value, int | float) else value


class SettingsFile(VersionedDocument):
    """The content of the file.

    `mpi`: the flavour that the settings are for; `set`: a value for each knob, as for --set.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["hvscale/settings/1"] = "hvscale/settings/1"
    mpi: str
    transport: str | None = None
    devices: str | None = None
    set: dict[str, Annotated[str, BeforeValidator(words)]] = {}


def read_settings(path: Path) -> SettingsFile:
    """Read the file.

    Raises RequestError, naming the place, when it cannot be read, is damaged, or has an unknown key
    or knob.
    """
    try:
        found = SettingsFile.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise RequestError(f"--settings {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        is_unknown = first["type"] == "extra_forbidden"
        problem = suggest_name("key", place, sorted(keys())) if is_unknown else first["msg"]
        raise RequestError(f"--settings {path}: {place}: {problem}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--settings {path} is not valid TOML: {error}") from error
    settings_of(found, path)
    return found


def keys() -> list[str]:
    return [field.alias or name for name, field in SettingsFile.model_fields.items()]


def settings_of(file: SettingsFile, path: Path) -> list[Setting]:
    """The settings in the file. Raises RequestError, naming the file, for an unknown knob."""
    return parse([f"{knob}={text}" for knob, text in file.set.items()], option=f"--settings {path}:")


def with_settings_file(path: Path, options: LaunchOptions) -> LaunchOptions:
    """The options with the file's settings behind those of the command line, which go first.

    Raises RequestError for a file that was made for another --mpi: its settings were measured on
    that library alone.
    """
    file = read_settings(path)
    if file.mpi != options.mpi:
        raise RequestError(
            f"--settings {path} was made for --mpi {file.mpi}, and this job is --mpi {options.mpi}: add --mpi {file.mpi}, or take from "
            "the file what you want as --set"
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
    more = (str(setting) for setting in settings if setting.knob not in given)
    return options.replace(**changes, set=(*options.set, *more))
