"""OpenMP, with which PyTorch computes on CPUs."""

from hvscale.comm_tuning.knobs.library import Library, Spelling, register
from hvscale.comm_tuning.knobs.values import Count

register(
    Library(
        key="openmp",
        name="OpenMP",
        spellings=(
            Spelling(
                knob="threads",
                variables={"OMP_NUM_THREADS": ""},
                values=Count(1, 2**31 - 1),
                unit="threads",
                needs="a program that does not set its own number; PyTorch takes no more than cores",
                source="torch.get_num_threads(); by default one for each core",
            ),
        ),
    )
)
