"""A domain cut into cuboids: a 3-D stencil."""

from typing import ClassVar

from hvscale.bench.applications import Application, ApplicationParameter, Result, Sizes, register

AXES = ("x", "y", "z")
BYTES_A_CELL = 16  # old and new value


class StencilResult(Result):
    checksum: str
    blocks: tuple[int, int, int]


class Stencil(Application):
    name = "stencil"
    summary = "a 3-D stencil: each cell from itself and its neighbours, cut into cuboids whose walls are exchanged before each step"
    sources = ("stencil.c", "cuts.c")
    parameters: ClassVar = {
        "x": ApplicationParameter("cells along the first axis", 100, 200),
        "y": ApplicationParameter("cells along the second axis", 200, 400),
        "z": ApplicationParameter("cells along the third axis", 300, 600),
        "steps": ApplicationParameter("in time", 30, 300),
        # The study names none; its best speed-up and time make 164 ns a cell and step on one core,
        # and so do 50 on a Xeon with AMX.
        "work": ApplicationParameter("how often a cell's mean is taken in a step", 5, 50),
    }
    result = StencilResult
    needs_serial_run = True

    def why_not(self, np: int, sizes: Sizes) -> str | None:
        cells = [sizes[axis] for axis in AXES]
        if not can_be_cut(cells, np):
            shape = " x ".join(map(str, cells))
            return f"{shape} cells cannot be cut into {np} cuboids: np is a product of three numbers, each at most the cells along its axis"
        return None

    def memory(self, np: int, sizes: Sizes) -> tuple[int, str]:
        x, y, z = (sizes[axis] for axis in AXES)
        return BYTES_A_CELL * x * y * z, f"{BYTES_A_CELL} bytes for each of {x} x {y} x {z} cells"

    def problem(self, result: StencilResult, sizes: Sizes, serial: StencilResult) -> str | None:
        if result.checksum != serial.checksum:
            return f"its cells differ from those of the same build on one rank (checksum {result.checksum}, not {serial.checksum})"
        return None


def can_be_cut(cells: list[int], np: int) -> bool:
    """Whether each of np ranks gets a cell at least."""
    return any(
        np % (x * y) == 0 and np // (x * y) <= cells[2]
        for x in range(1, min(np, cells[0]) + 1)
        if np % x == 0
        for y in range(1, min(np // x, cells[1]) + 1)
    )


register(Stencil())
