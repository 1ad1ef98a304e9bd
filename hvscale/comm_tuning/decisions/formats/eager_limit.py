"""eager-limit.conf: the largest message without a rendezvous, in the variables of the job's library."""

from hvscale.comm_tuning.decisions.written import Format, Job, register
from hvscale.comm_tuning.knobs.library import libraries


def variables(job: Job) -> dict[str, str]:
    """In the library's spelling of the knob eager_threshold."""
    if job.table.eager_limit_bytes is None:
        return {}
    return {
        name: word
        for library in libraries()
        if library.key == job.table.mpi
        for spelling in library.spellings
        if spelling.knob == "eager_threshold"
        for name, word in spelling.write(job.table.eager_limit_bytes).items()
    }


register(
    Format(
        file="eager-limit.conf",
        what="the job's eager limit",
        text=lambda job: "".join(f"{name}={word}\n" for name, word in variables(job).items()),
        applies=lambda job: bool(variables(job)),
        variables=variables,
    )
)
