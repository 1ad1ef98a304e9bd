"""A job with the settings of a finished study, and what its libraries call them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hvscale.comm_tuning.knobs.settings import parse, target_of, translate
from hvscale.comm_tuning.tune.document import TuneDocument
from hvscale.core.run_folder import Library
from hvscale.launch import flavours
from hvscale.launch.mpi.mpi_library import MPI4PY_LIBRARY
from hvscale.launch.options import LaunchOptions

# Paths of this machine, which no settings file may hold.
PATHS = ("LD_LIBRARY_PATH", "FI_PROVIDER_PATH", MPI4PY_LIBRARY)


@dataclass(frozen=True)
class TunedJob:
    """The job as a study leaves it.

    `settings`: as for --set, those of the whole study and, where the gain was proven, the winner's;
    `gained`: only the winner's. `variables`: the environment variables that set them and the
    transport; `default_settings`: the variables that hvscale sets for this library in any job.
    `transport` and `devices`: the launch options, None and "all" where they were not given.
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
        """`folder`: where the files are written.

        Raises RequestError for settings that the job's libraries do not have.
        """
        launch = document.launch
        proven = document.proof is not None and document.proof.accepted
        gained = dict(document.winner or {}) if proven else {}
        settings = {**launch.knobs, **document.fixed, **gained}
        library = document.library or Library(flavour=launch.mpi, version="")
        asked = parse([f"{knob}={text}" for knob, text in settings.items()])
        by_user = names_of(launch.env)
        translated = translate(asked, target_of(asked, document.command, launch.replace(env=()), library))
        variables = {
            name: word
            for name, word in {**translated.also_set, **translated.variables}.items()
            if name not in by_user or name in translated.variables
        }
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
        """The variables whose names begin with one of these."""
        return {name: word for name, word in self.variables.items() if name.startswith(prefixes)}

    def others(self, *prefixes: str) -> list[str]:
        """The names of all other variables."""
        return sorted(name for name in self.variables if not name.startswith(prefixes))


def names_of(env: Iterable[str]) -> list[str]:
    """The names of the variables that were given with --env."""
    return [request.partition("=")[0] for request in env]
