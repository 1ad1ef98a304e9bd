"""Identifying the MPI library by its version text, because several libraries share one ABI."""

import pytest

from hvscale.trainer.ranks import parse_library


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Open MPI v5.0.11, package: Debian OpenMPI, ident: 5.0.11", "openmpi Open MPI v5.0.11"),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\n", "mpich MPICH Version: 5.0.2"),
        ("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Device: ch3:mrail\n", "mvapich2 MVAPICH2 Version : 2.3.7"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS\n", "intelmpi Intel(R) MPI Library 2021.13 for Linux* OS"),
        ("MPI VERSION    : CRAY MPICH version 8.1.28.2 (ANL base 3.4a2)\n", None),
        ("", "unknown "),
    ],
)
def test_library_is_identified_by_its_version_text(text: str, name: str | None) -> None:
    expected = name or "unknown MPI VERSION : CRAY MPICH version 8.1.28.2 (ANL base 3.4a2)"
    assert parse_library(text).name == expected
