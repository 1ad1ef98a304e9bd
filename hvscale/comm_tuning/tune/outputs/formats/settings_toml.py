"""settings.toml: the settings as knobs, for --settings."""

import json
import shlex

from hvscale.comm_tuning.knobs.settings_file import KNOBS
from hvscale.comm_tuning.tune.outputs.output_format import OutputFormat, TunedJob, register


def text(tuned: TunedJob) -> str:
    options = {"mpi": tuned.flavour}
    if tuned.transport and KNOBS["--transport"] not in tuned.settings:
        options["transport"] = tuned.transport
    if tuned.devices != "all" and KNOBS["--devices"] not in tuned.settings:
        options["devices"] = tuned.devices
    notes = [] if tuned.settings else ["Nothing to set: see guide.md."]
    return settings_toml(options, dict(tuned.settings), notes)


def settings_toml(options: dict[str, str], settings: dict[str, str], notes: list[str]) -> str:
    """The file's text. `options`: of a launch; `notes`: lines of comment."""
    head = ["For hvscale launch, profile and scale: --settings FILE; --set on the command line overrides it.", *notes]
    comments = [f"# {line}" for line in head]
    return "\n".join([*comments, 'schema = "hvscale/settings/1"', *pairs(options), "", "[set]", *pairs(settings), ""])


def pairs(values: dict[str, str]) -> list[str]:
    return [f"{name} = {quoted(value)}" for name, value in values.items()]


def quoted(text: str) -> str:
    """A basic string of TOML: as in JSON, except that TOML needs DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


register(
    OutputFormat(
        file="settings.toml",
        what="the settings as hvscale's knobs",
        text=text,
        use=lambda tuned: f"hvscale launch --settings {shlex.quote(tuned.path('settings.toml'))} ...",
    )
)
