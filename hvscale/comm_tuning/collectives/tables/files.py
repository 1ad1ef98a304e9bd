"""The files that a decision table is written to, and the registry of their formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path

from hvscale.comm_tuning.collectives.tables.library_algorithms import OWN_CHOICE
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, Operation, Rule, nearest
from hvscale.core.registry import Registry
from hvscale.core.run_folder import cannot_write, write_atomically

OPERATIONS: tuple[Operation, ...] = ("broadcast", "allreduce", "allgather", "gather")


@dataclass(frozen=True)
class SizeRange:
    """Messages from `first` bytes to `last` (None: no end), and the rule with the library's
    algorithm; None: its own choice.

    `measured`: a rule of the table covers them.
    """

    first: int
    last: int | None
    rule: Rule | None
    measured: bool


@dataclass(frozen=True)
class TableTarget:
    """The job a table is written for: `np` ranks, `ranks_per_node`, and the MPI `library` where a
    format needs it.

    No library knows how many ranks of a communicator share a node, so a file is valid for one job
    layout.
    """

    folder: Path
    table: CollectivesTable
    np: int
    ranks_per_node: int
    library: Path | None = None

    def path(self, file: str) -> str:
        return str(self.folder.absolute() / file)

    def of(self, operation: Operation, auto: bool = False) -> dict[int, list[SizeRange]]:
        """By the least number of ranks that takes them, ascending and from 0 on: what the table
        says for the nearest np. Empty where it says nothing.

        Each np's ranges lie one behind another from 0 bytes on, without an end; neighbours differ.
        `auto`: that is an algorithm like others, and not what the library does anyhow.
        """
        rules = [rule for rule in self.table.rule if rule.operation == operation]
        known = sorted({rule.np for rule in rules})
        found: dict[int, list[SizeRange]] = {}
        for before, np in zip([0, *known], known, strict=False):
            of_np = [rule for rule in rules if rule.np == np]
            on_a_node = nearest((rule.ranks_per_node for rule in of_np), min(self.ranks_per_node, np))
            chosen = [rule for rule in of_np if rule.ranks_per_node == on_a_node]
            # Nearer to np than to the one before: beyond their geometric mean.
            found[isqrt(before * np) + 1 if before else 0] = without_gaps(chosen, auto)
        return found

    def of_the_job(self, operation: Operation) -> list[SizeRange]:
        """For all its ranks. The first rule goes down to 0 bytes: for variables, which have no word
        for the library's own choice.
        """
        found = self.of(operation)
        fitting = [least for least in found if least <= self.np]
        ranges = found[max(fitting)] if fitting else []
        if len(ranges) > 1 and not ranges[0].measured:
            return [replace(ranges[1], first=0), *ranges[2:]]
        return ranges


def named(rule: Rule, auto: bool = False) -> Rule | None:
    """The rule, or None where the choice is left to the library; it does not know our own
    broadcasts either.
    """
    left = rule.library_algorithm is None or (rule.library_algorithm == OWN_CHOICE and not auto)
    return None if left else rule


def without_gaps(rules: list[Rule], auto: bool) -> list[SizeRange]:
    found: list[SizeRange] = []

    def add(first: int, last: int | None, rule: Rule | None, measured: bool) -> None:
        if found and words_of(found[-1].rule) == words_of(rule):
            found[-1] = replace(found[-1], last=last, measured=measured or found[-1].measured)
        else:
            found.append(SizeRange(first, last, rule, measured))

    start = 0
    for rule in sorted(rules, key=lambda rule: rule.bytes_min):
        # Messages of 0 bytes do not matter: the first rule may cover them.
        if rule.bytes_min > max(start, 1):
            add(start, rule.bytes_min - 1, None, False)
            start = rule.bytes_min
        add(start, rule.bytes_max, named(rule, auto), True)
        if rule.bytes_max is None:
            return found
        start = rule.bytes_max + 1
    add(start, None, None, False)
    return found


def words_of(rule: Rule | None) -> tuple[object, ...]:
    return () if rule is None else (rule.library_algorithm, rule.segment_bytes, rule.protocol, rule.channels)


def always(job: TableTarget) -> bool:
    return True


def no_variables(job: TableTarget) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Format:
    """One file format. `what`: its content in a few words. `variables`: the environment variables
    that make a library use it.
    """

    file: str
    what: str
    text: Callable[[TableTarget], str]
    applies: Callable[[TableTarget], bool] = always
    variables: Callable[[TableTarget], Mapping[str, str]] = no_variables


FORMATS: Registry[Format] = Registry("file format", "hvscale.comm_tuning.collectives.tables.formats")


def register(format_: Format) -> Format:
    return FORMATS.register(format_.file, format_)


def write_files(job: TableTarget) -> list[Path]:
    """Write every file that applies to the job. Raises RequestError where the folder cannot be
    written or the library is unsuitable.
    """
    written = []
    texts = {job.folder / one.file: one.text(job) for one in FORMATS.all().values() if one.applies(job)}
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomically(path, lambda stream, text=text: stream.write(text.encode()))  # type: ignore[misc]
            written.append(path)
    except OSError as error:
        raise cannot_write(job.folder, error) from error
    return written


def environment(job: TableTarget) -> dict[str, str]:
    """The environment variables that make the job's library use the files."""
    found: dict[str, str] = {}
    for one in FORMATS.all().values():
        if one.applies(job):
            found.update(one.variables(job))
    return found
