"""Records of runs that never started."""

from datetime import UTC, datetime

from hvscale.core.run_folder import Host, Library, RunRecord

CORES = 8


def a_record(np: int, cores: int = CORES, placement: str = "host") -> RunRecord:
    return RunRecord(
        command=["true"],
        np=np,
        placement=placement,
        library=Library(flavour="openmpi", version="5"),
        host=Host(name="here", kernel="k", cpu="c", cores=cores, memory_bytes=1),
        working_directory="/",
        started_at=datetime.now(UTC),
    )
