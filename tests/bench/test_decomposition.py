"""The stencil's decomposition in C: every cell is in one cuboid, the cuboids are balanced, and the
area between them is minimal.
"""

import ctypes
import itertools
import math
import subprocess
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.bench.applications import PROGRAMS
from hvscale.bench.applications.programs.stencil import can_be_decomposed

Blocks = tuple[int, int, int]
Cells = tuple[int, int, int]
boxes = st.tuples(*[st.integers(1, 6)] * 3)


class Decomposition:
    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.first_cell.restype = ctypes.c_longlong
        self.library.first_cell.argtypes = [ctypes.c_longlong, ctypes.c_int, ctypes.c_int]

    def decompose(self, cells: Cells, np: int) -> Blocks | None:
        blocks = (ctypes.c_int * 3)()
        found = self.library.decompose((ctypes.c_longlong * 3)(*cells), np, blocks)
        return (blocks[0], blocks[1], blocks[2]) if found else None

    def layers(self, cells: int, blocks: int) -> list[range]:
        edges = [self.library.first_cell(cells, blocks, block) for block in range(blocks + 1)]
        return [range(first, end) for first, end in pairwise(edges)]

    def cuboids(self, cells: Cells, blocks: Blocks) -> Iterator[tuple[range, range, range]]:
        x, y, z = (self.layers(along, count) for along, count in zip(cells, blocks, strict=True))
        return product(x, y, z)


@pytest.fixture(scope="module")
def decomposition(tmp_path_factory: pytest.TempPathFactory) -> Decomposition:
    library = tmp_path_factory.mktemp("decomposition") / "decomposition.so"
    subprocess.run(
        [
            "cc",
            "-std=c11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            library,
            PROGRAMS / "decomposition.c",
        ],
        check=True,
    )
    return Decomposition(library)


def grids(cells: Cells, np: int) -> list[Blocks]:
    """All possible decompositions, found by exhaustive search."""
    numbers = range(1, np + 1)
    return [
        (x, y, z)
        for x, y, z in itertools.product(numbers, repeat=3)
        if x * y * z == np and x <= cells[0] and y <= cells[1] and z <= cells[2]
    ]


def area_between(cells: Cells, cuboids: list[tuple[range, range, range]]) -> int:
    """Faces between cells of different cuboids, counted cell by cell."""
    owner = {cell: number for number, cuboid in enumerate(cuboids) for cell in product(*cuboid)}
    return sum(
        owner[cell] != owner[neighbour]
        for cell in product(range(cells[0]), range(cells[1]), range(cells[2]))
        for axis in range(3)
        if (neighbour := (cell[0] + (axis == 0), cell[1] + (axis == 1), cell[2] + (axis == 2))) in owner
    )


@given(cells=boxes, np=st.integers(1, 8))
@settings(max_examples=60)
def test_every_cell_is_in_one_cuboid_and_the_area_is_minimal(
    decomposition: Decomposition, cells: Cells, np: int
) -> None:
    possible = grids(cells, np)
    blocks = decomposition.decompose(cells, np)
    assert can_be_decomposed(list(cells), np) == bool(possible) == (blocks is not None)
    if blocks is None:
        return
    assert math.prod(blocks) == np
    cuboids = list(decomposition.cuboids(cells, blocks))
    covered = [cell for cuboid in cuboids for cell in product(*cuboid)]
    assert sorted(covered) == sorted(product(*map(range, cells)))
    for axis in range(3):
        lengths = {len(cuboid[axis]) for cuboid in cuboids}
        assert min(lengths) > 0
        assert max(lengths) - min(lengths) <= 1
    least = min(area_between(cells, list(decomposition.cuboids(cells, one))) for one in possible)
    assert area_between(cells, cuboids) == least


@pytest.mark.parametrize(
    ("np", "blocks"),
    # The walls across x are 400 x 600 cells, those across y 200 x 600, those across z 200 x 400.
    [(1, (1, 1, 1)), (2, (1, 1, 2)), (4, (1, 2, 2)), (6, (1, 2, 3)), (64, (2, 4, 8)), (256, (4, 8, 8))],
)
def test_blocks_for_the_cells_of_the_study(decomposition: Decomposition, np: int, blocks: Blocks) -> None:
    assert decomposition.decompose((200, 400, 600), np) == blocks
