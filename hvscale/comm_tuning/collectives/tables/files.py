"""The files that a decision table is written to, and the registry of their formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path

from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, Operation, Rule, nearest
from hvscale.comm_tuning.knobs.library import AUTO
from hvscale.core.registry import Registry
from hvscale.core.run_folder import cannot_write, write_text

OPERATIONS: tuple[Operation, ...] = ("broadcast", "allreduce", "allgather", "gather")


@dataclass(frozen=True)
class SizeRange:
    """Messages of `first` to `last` bytes (None: no upper limit), with the rule that applies.

    `rule`: names an algorithm of the library; None leaves the choice to the library. `measured`:
    whether a rule of the table covers the range.
    """

    first: int
    last: int | None
    rule: Rule | None
    measured: bool


@dataclass(frozen=True)
class TableTarget:
    """The job that a table is written for: `np` ranks, with `ranks_per_node` on each node.

    No library knows how many ranks of a communicator share a node, so the files are valid for one
    layout. `library`: the path of the MPI library, for the formats that read it.
    """

    folder: Path
    table: CollectivesTable
    np: int
    ranks_per_node: int
    library: Path | None = None

    def path(self, file: str) -> str:
        return str(self.folder.absolute() / file)

    def ranges_by_np(self, operation: Operation, name_auto: bool = False) -> dict[int, list[SizeRange]]:
        """The ranges by the least number of ranks they apply to, ascending from 0.

        Empty if the table has no rules for the operation. The ranges of one np start at 0 bytes,
        have no gaps and no upper limit; adjacent ranges differ. `name_auto`: treat `auto` as an
        algorithm, not as the library's own choice.
        """
        rules = [rule for rule in self.table.rule if rule.operation == operation]
        known = sorted({rule.np for rule in rules})
        found: dict[int, list[SizeRange]] = {}
        for before, np in zip([0, *known], known, strict=False):
            of_np = [rule for rule in rules if rule.np == np]
            per_node = nearest((rule.ranks_per_node for rule in of_np), min(self.ranks_per_node, np))
            chosen = [rule for rule in of_np if rule.ranks_per_node == per_node]
            # The nearest np changes at the geometric mean.
            found[isqrt(before * np) + 1 if before else 0] = without_gaps(chosen, name_auto)
        return found

    def ranges_of_job(self, operation: Operation) -> list[SizeRange]:
        """The ranges for all ranks of the job, for environment variables.

        Variables cannot express the library's own choice, so the first rule extends down to 0
        bytes.
        """
        found = self.ranges_by_np(operation)
        fitting = [least for least in found if least <= self.np]
        ranges = found[max(fitting)] if fitting else []
        if len(ranges) > 1 and not ranges[0].measured:
            return [replace(ranges[1], first=0), *ranges[2:]]
        return ranges


def names_algorithm(rule: Rule, name_auto: bool = False) -> bool:
    """Whether the rule names an algorithm of the library, instead of leaving it the choice."""
    return rule.library_algorithm is not None and (rule.library_algorithm != AUTO or name_auto)


def any_algorithm(ranges: list[SizeRange]) -> bool:
    return any(one.rule is not None for one in ranges)


def without_gaps(rules: list[Rule], name_auto: bool) -> list[SizeRange]:
    found: list[SizeRange] = []

    def add(first: int, last: int | None, rule: Rule | None, measured: bool) -> None:
        if found and library_settings(found[-1].rule) == library_settings(rule):
            found[-1] = replace(found[-1], last=last, measured=measured or found[-1].measured)
        else:
            found.append(SizeRange(first, last, rule, measured))

    start = 0
    for rule in sorted(rules, key=lambda rule: rule.bytes_min):
        # Messages of 0 bytes do not matter: the first rule may cover them.
        if rule.bytes_min > max(start, 1):
            add(start, rule.bytes_min - 1, None, False)
            start = rule.bytes_min
        add(start, rule.bytes_max, rule if names_algorithm(rule, name_auto) else None, True)
        if rule.bytes_max is None:
            return found
        start = rule.bytes_max + 1
    add(start, None, None, False)
    return found


def library_settings(rule: Rule | None) -> tuple[object, ...]:
    return () if rule is None else (rule.library_algorithm, rule.segment_bytes, rule.protocol, rule.channels)


def no_variables(target: TableTarget) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class TableFormat:
    """One file format.

    `mpi`: written only for a table of this flavour, or nccl, that names algorithms; None for every
    table. `text`: the content; an empty file is not written. `variables`: the environment variables
    that make the library read the file.
    """

    file: str
    text: Callable[[TableTarget], str]
    variables: Callable[[TableTarget], Mapping[str, str]] = no_variables
    mpi: str | None = None

    def applies(self, target: TableTarget) -> bool:
        return self.mpi is None or (self.mpi == target.table.mpi and target.table.names_algorithms)


FORMATS: Registry[TableFormat] = Registry("file format", "hvscale.comm_tuning.collectives.tables.formats")


def register(format_: TableFormat) -> TableFormat:
    return FORMATS.register(format_.file, format_)


def applicable_formats(target: TableTarget) -> list[TableFormat]:
    return [one for one in FORMATS.all().values() if one.applies(target)]


def write_files(target: TableTarget) -> list[Path]:
    """Write every file that applies to the target, and return their paths.

    Files of an earlier call that no longer apply are removed. Raises RequestError if the folder
    cannot be written or the library is unsuitable.
    """
    written = []
    texts = {target.folder / one.file: one.text(target) for one in applicable_formats(target)}
    try:
        target.folder.mkdir(parents=True, exist_ok=True)
        for name in FORMATS.all():
            path = target.folder / name
            if text := texts.get(path):
                write_text(path, text)
                written.append(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(target.folder, error) from error
    return written


def environment(target: TableTarget) -> dict[str, str]:
    """The environment variables that make the job's library use the files."""
    found: dict[str, str] = {}
    for one in applicable_formats(target):
        found.update(one.variables(target))
    return found
