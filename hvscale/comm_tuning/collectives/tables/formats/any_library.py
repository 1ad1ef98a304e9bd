"""The files of every library: the table itself, and the job's eager limit."""

from hvscale.comm_tuning.collectives.tables.files import TableFormat, TableTarget, register
from hvscale.comm_tuning.knobs.library import spelling_of


def eager_limit_variables(target: TableTarget) -> dict[str, str]:
    """The library's variables for the knob eager_threshold; empty for its default."""
    spelling = spelling_of(target.table.mpi, "eager_threshold")
    limit = target.table.eager_limit_bytes
    return spelling.write(limit) if spelling is not None and limit is not None else {}


register(TableFormat(file="collectives.toml", text=lambda target: target.table.toml()))
register(
    TableFormat(
        file="eager-limit.conf",
        text=lambda target: "".join(f"{name}={value}\n" for name, value in eager_limit_variables(target).items()),
        variables=eager_limit_variables,
    )
)
