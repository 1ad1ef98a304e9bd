"""OpenMP, which PyTorch uses on CPUs."""

from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, register
from hvscale.comm_tuning.knobs.values import WholeNumber

register(
    KnobLibrary(
        key="openmp",
        name="OpenMP",
        spellings=(
            Spelling(
                knob="threads",
                variables={"OMP_NUM_THREADS": ""},
                values=WholeNumber(1, 2**31 - 1),
                unit="threads",
                note="has no effect if the program sets its own number; PyTorch uses at most one thread per core",
                source="torch.get_num_threads(); one per core by default",
            ),
        ),
    )
)
