"""The registry of a study's output files, and the `TunedJob` that each format gets."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hvscale.comm_tuning.knobs.settings import parse, target_of, translate
from hvscale.comm_tuning.tune.document import TuneDocument
from hvscale.core.registry import Registry
from hvscale.core.run_folder import Library
from hvscale.launch import flavours
from hvscale.launch.mpi.mpi_library import MPI4PY_LIBRARY
from hvscale.launch.options import LaunchOptions

# Paths of this machine, which do not belong in settings files.
PATHS = ("LD_LIBRARY_PATH", "FI_PROVIDER_PATH", MPI4PY_LIBRARY)


@dataclass(frozen=True)
class TunedJob:
    """The job with the settings of a finished study, as its libraries name them.

    `settings`: as for --set, those fixed in the study and, if the gain is proven, the winner's.
    `gained`: only the winner's. `variables`: the environment variables for `settings` and the
    transport. `default_settings`: the variables that hvscale sets for this library in any job.
    `transport`, `devices`: the launch options, None and "all" if not given.
    """

    folder: Path
    document: TuneDocument
    library: Library
    launch: LaunchOptions
    settings: Mapping[str, str]
    gained: Mapping[str, str]
    variables: Mapping[str, str]
    default_settings: Mapping[str, str]
    transport: str | None
    devices: str

    @classmethod
    def of(cls, folder: Path, document: TuneDocument) -> Self:
        """The tuned job of a study. `folder`: of the output files.

        Raises RequestError for settings that the job's libraries do not support.
        """
        launch = document.launch
        proven = document.proof is not None and document.proof.accepted
        gained = dict(document.winner or {}) if proven else {}
        settings = {**launch.knobs, **document.fixed, **gained}
        library = document.library or Library(flavour=launch.mpi, version="")
        asked = parse([f"{knob}={text}" for knob, text in settings.items()])
        by_user = names_of(launch.env)
        translated = translate(asked, target_of(asked, document.command, launch.replace(env=()), library))
        # In a launch's options, the variables that --set requires are among those of --env.
        required = {
            name: word
            for name, word in translated.also_set.items()
            if name not in by_user or f"{name}={word}" in launch.env
        }
        variables = {**required, **translated.variables, **translated.preload}
        transport = translated.options.get("--transport", launch.transport)
        flavour = flavours.get(library.flavour)
        default_settings = flavour.adapt({}, library)
        chosen = library.model_copy(update={"transport": transport}) if transport else library
        adapted = flavour.adapt(variables, chosen)
        return cls(
            folder=folder,
            document=document,
            library=library,
            launch=launch,
            settings=settings,
            gained=gained,
            variables={
                name: word for name, word in adapted.items() if word != default_settings.get(name) and name not in PATHS
            },
            default_settings={name: word for name, word in default_settings.items() if name not in PATHS},
            transport=transport,
            devices=translated.options.get("--devices", launch.devices),
        )

    @property
    def flavour(self) -> str:
        return self.library.flavour

    def path(self, file: str) -> str:
        return str(self.folder / file)

    def beginning(self, *prefixes: str) -> dict[str, str]:
        """The variables whose names begin with one of the prefixes."""
        return {name: word for name, word in self.variables.items() if name.startswith(prefixes)}

    def others(self, *prefixes: str) -> list[str]:
        """The names of all other variables, sorted."""
        return sorted(name for name in self.variables if not name.startswith(prefixes))


def names_of(env: Iterable[str]) -> list[str]:
    """The names of the variables given with --env."""
    return [request.partition("=")[0] for request in env]


def always(tuned: TunedJob) -> bool:
    return True


@dataclass(frozen=True)
class OutputFormat:
    """One output file.

    `what`: its content in a few words. `use`: the shell command that makes a library read it, empty
    if there is none.
    """

    file: str
    what: str
    text: Callable[[TunedJob], str]
    applies: Callable[[TunedJob], bool] = always
    use: Callable[[TunedJob], str] = lambda tuned: ""


OUTPUT_FORMATS: Registry[OutputFormat] = Registry("output file", "hvscale.comm_tuning.tune.outputs.formats")


def register(output: OutputFormat) -> None:
    OUTPUT_FORMATS.register(output.file, output)


def output_formats() -> list[OutputFormat]:
    """All formats, by the name of the file."""
    return list(OUTPUT_FORMATS.all().values())
