"""eager-limit.conf: the largest message without a rendezvous, in the variables of the job's
library.
"""

from hvscale.comm_tuning.collectives.tables.files import Format, TableTarget, register
from hvscale.comm_tuning.collectives.tables.library_algorithms import spelling_of


def variables(job: TableTarget) -> dict[str, str]:
    """In the library's spelling of the knob eager_threshold."""
    if job.table.eager_limit_bytes is None:
        return {}
    spelling = spelling_of(job.table.mpi, "eager_threshold")
    return spelling.write(job.table.eager_limit_bytes) if spelling is not None else {}


register(
    Format(
        file="eager-limit.conf",
        what="the job's eager limit",
        text=lambda job: "".join(f"{name}={word}\n" for name, word in variables(job).items()),
        applies=lambda job: bool(variables(job)),
        variables=variables,
    )
)
