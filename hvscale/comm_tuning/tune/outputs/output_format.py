"""The files that a study writes: one output format each, and the registry of them."""

from collections.abc import Callable
from dataclasses import dataclass

from hvscale.comm_tuning.tune.outputs.tuned_job import TunedJob
from hvscale.core.registry import Registry


def always(tuned: TunedJob) -> bool:
    return True


@dataclass(frozen=True)
class OutputFormat:
    """One file.

    `what`: its content in a few words; `use`: the shell command that makes its library read it,
    empty where there is none.
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
    """Every known format, ordered by the name of its file."""
    return list(OUTPUT_FORMATS.all().values())
