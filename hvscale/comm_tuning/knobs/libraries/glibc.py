"""glibc, whose malloc gives programs and MPI libraries the memory of their messages."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import Switch

HUGE_PAGES = "glibc.malloc.hugetlb"

register(
    KnobLibrary(
        key="glibc",
        name="glibc",
        spellings=(
            Spelling(
                knob="huge_pages",
                variables={"GLIBC_TUNABLES": f"{HUGE_PAGES}=0"},
                values=Switch(on=f"{HUGE_PAGES}=1", off=f"{HUGE_PAGES}=0"),
                separator=":",
                note="needs glibc 2.35 or later and transparent huge pages in mode madvise; in mode always, malloc has them anyway",
                source="glibc manual, memory allocation tunables",
            ),
        ),
    )
)
