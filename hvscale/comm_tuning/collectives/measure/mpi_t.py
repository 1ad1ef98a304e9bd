"""Sets control variables of this process' MPI library through MPI's tools interface (MPI_T).

Open MPI reads the variables that select algorithms when it creates a communicator, MPICH at each
call.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hvscale.core.errors import HvscaleError
from hvscale.launch.rank_side.persistent_mpi import MPI_THREAD_MULTIPLE

MCA = "OMPI_MCA_"
VALUE_BYTES = 8  # room for a value, which is an int or a bool


class ControlVariableError(HvscaleError):
    """The library has no tools interface, or it rejects a variable or value."""

    exit_status = 3


class ControlVariables:
    """The control variables of one MPI library.

    `numbers`: the integers that the library's value names stand for, by variable and name, from
    `value_numbers`.
    """

    def __init__(self, library: str, numbers: Mapping[tuple[str, str], int]) -> None:
        """`library`: the path of its file."""
        self.mpi, self.numbers = ctypes.CDLL(library), numbers
        self.handles: dict[str, Any] = {}
        self.initial: dict[str, int] = {}
        self.current: dict[str, str] = {}

    def accepts(self, variables: Mapping[str, str]) -> bool:
        """Whether the library has these variables and accepts these values; changes nothing."""
        current = dict(self.current)
        try:
            self.set(variables)
        except ControlVariableError:
            return False
        finally:
            self.set(current)
        return True

    def set(self, variables: Mapping[str, str]) -> None:
        """Set these variables, and reset all others to their initial values. Raises
        ControlVariableError.
        """
        for name in self.current.keys() - variables.keys():
            self._write(name, self.initial[name])
            del self.current[name]
        for name, word in variables.items():
            if self.current.get(name) != word:
                if name not in self.initial:
                    self.initial[name] = read_variable(self.mpi, self._handle(name))
                self._write(name, self._number(name, word))
                self.current[name] = word

    def _number(self, name: str, word: str) -> int:
        if word.isdigit():
            return int(word)
        if (name, word) not in self.numbers:
            raise ControlVariableError(f"{name}: the library does not know the value {word}")
        return self.numbers[name, word]

    def _handle(self, name: str) -> Any:
        if not self.handles:
            start_tools(self.mpi)
        if name not in self.handles:
            self.handles[name] = handle_of(self.mpi, name)
        return self.handles[name]

    def _write(self, name: str, number: int) -> None:
        value = (ctypes.c_char * VALUE_BYTES).from_buffer_copy(number.to_bytes(VALUE_BYTES, sys.byteorder, signed=True))
        if self.mpi.MPI_T_cvar_write(self._handle(name), value) != 0:
            raise ControlVariableError(f"{name}: the library rejects the value {number}")


def loaded_library() -> str:
    """The path of the MPI library in this process. Raises ControlVariableError if none is
    loaded.
    """
    files = {
        line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    found = sorted(file for file in files if Path(file).name.startswith("libmpi.so"))
    if not found:
        raise ControlVariableError("no MPI library is loaded (libmpi.so)")
    return found[0]


def start_tools(mpi: ctypes.CDLL) -> None:
    """Initialize the tools interface. Raises ControlVariableError if the library has none.

    With all threads, because Open MPI lowers the thread level of MPI itself to that of its tools.
    """
    provided = ctypes.c_int()
    if not hasattr(mpi, "MPI_T_init_thread") or mpi.MPI_T_init_thread(MPI_THREAD_MULTIPLE, ctypes.byref(provided)) != 0:
        raise ControlVariableError(
            "the MPI library has no tools interface (MPI_T), so its algorithms cannot be selected"
        )


def handle_of(mpi: ctypes.CDLL, variable: str) -> Any:
    """The handle of a control variable.

    Raises ControlVariableError if the library does not have it, or if it is not a single number.
    """
    index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    name = variable.removeprefix(MCA).encode()
    if mpi.MPI_T_cvar_get_index(name, ctypes.byref(index)) != 0:
        raise ControlVariableError(f"the library has no {variable}")
    if mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)) != 0 or count.value != 1:
        raise ControlVariableError(f"{variable} is not a single number")
    return handle


def read_variable(mpi: ctypes.CDLL, handle: Any) -> int:
    value = (ctypes.c_char * VALUE_BYTES)()
    if mpi.MPI_T_cvar_read(handle, value) != 0:
        raise ControlVariableError("the library does not report a variable's value")
    return int.from_bytes(bytes(value)[:4], sys.byteorder, signed=True)


def value_numbers(library: str, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The integers that a library's value names stand for, by variable and name.

    MPICH, for example, has names for algorithms. A new process with the name in its environment
    reads the integer back. Unknown names are left out: for these the process reads the same integer
    as for a nonsense name.
    """
    asked = sorted(set(names))
    if not asked:
        return {}
    command = [sys.executable, "-P", "-m", __name__, library, *(text for pair in asked for text in pair)]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    found = {}
    for line in output.splitlines():
        name, word, number = line.split()
        found[name, word] = int(number)
    return found


def main() -> None:
    """Prints the integer of each name, from a forked process each.

    A library reads the environment only once per process.
    """
    library, *texts = sys.argv[1:]
    pairs = [*zip(texts[::2], texts[1::2], strict=True)]
    for name, word in pairs:
        number, nonsense_number = (number_behind(library, name, text) for text in (word, "no such word"))
        if number is not None and number != nonsense_number:
            print(name, word, number)


def number_behind(library: str, name: str, word: str) -> int | None:
    """The integer that a new process with this word in its environment reads."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "-"
        try:
            os.environ[name] = word
            mpi = ctypes.CDLL(library)
            start_tools(mpi)
            text = str(read_variable(mpi, handle_of(mpi, name)))
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    text = os.read(reader, 64).decode()
    os.close(reader)
    return int(text) if text.lstrip("-").isdigit() else None


if __name__ == "__main__":
    main()
