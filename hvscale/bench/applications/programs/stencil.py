"""Domain decomposition: a 3-D stencil."""

import math
from typing import ClassVar

from hvscale.bench.applications import Application, ApplicationParameter, ProgramResult, Sizes, register

AXES = ("x", "y", "z")
BYTES_PER_CELL = 16  # old and new value


class StencilResult(ProgramResult):
    checksum: str
    blocks: tuple[int, int, int]


class Stencil(Application):
    name = "stencil"
    summary = "a 3-D stencil: each cell from itself and its neighbours, divided into cuboids that exchange their faces before each step"
    sources = ("stencil.c", "decomposition.c")
    parameters: ClassVar = {
        "x": ApplicationParameter("cells along the first axis", 100, 200),
        "y": ApplicationParameter("cells along the second axis", 200, 400),
        "z": ApplicationParameter("cells along the third axis", 300, 600),
        "steps": ApplicationParameter("in time", 30, 300),
        # The study gives none. Its best speed-up and time give 164 ns per cell and step on one
        # core; on a Xeon with AMX, 50 takes as long.
        "work": ApplicationParameter("means computed per cell and step", 5, 50),
    }
    result = StencilResult
    needs_serial_run = True

    def unsupported_reason(self, np: int, sizes: Sizes) -> str | None:
        cells = [sizes[axis] for axis in AXES]
        if not can_be_decomposed(cells, np):
            shape = " x ".join(map(str, cells))
            return f"{shape} cells cannot be divided into {np} cuboids: use a product of three factors, none larger than the cells along its axis"
        return None

    def memory(self, np: int, sizes: Sizes) -> tuple[int, str]:
        """Of the cells and a layer of halo on every side; more ranks add little to it."""
        whole = math.prod(sizes[axis] + 2 for axis in AXES)
        cells = " x ".join(str(sizes[axis]) for axis in AXES)
        return BYTES_PER_CELL * whole, f"{BYTES_PER_CELL} bytes for each of {cells} cells and of the halo around them"

    def check_result(self, result: StencilResult, sizes: Sizes, serial: StencilResult) -> str | None:
        if result.checksum != serial.checksum:
            return f"its cells differ from those of the same build on one rank (checksum {result.checksum}, not {serial.checksum})"
        return None


def can_be_decomposed(cells: list[int], np: int) -> bool:
    """Whether np ranks can get cuboids of at least one cell each."""
    return any(
        np % (x * y) == 0 and np // (x * y) <= cells[2]
        for x in range(1, min(np, cells[0]) + 1)
        if np % x == 0
        for y in range(1, min(np // x, cells[1]) + 1)
    )


register(Stencil())
