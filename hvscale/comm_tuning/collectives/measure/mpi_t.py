"""Telling the MPI library of this process its algorithms while it runs: its control variables, through MPI's tools interface (MPI_T).

Open MPI reads them when a communicator is made, MPICH with each call: so they are set before both.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hvscale.core.errors import HvscaleError

MCA = "OMPI_MCA_"
# MPI_T_cvar_get_info and its like take many arguments that are not asked for here; a value is an int or a bool.
ROOM = 8


class ToldError(HvscaleError):
    """The library has no tools interface, or does not take a value that it should."""

    exit_status = 3


class Told:
    """`numbers`: of the library's words for values, as `numbers_of` finds them."""

    def __init__(self, library: str, numbers: Mapping[tuple[str, str], int]) -> None:
        """`library`: its file."""
        self.mpi, self.numbers = ctypes.CDLL(library), numbers
        self.handles: dict[str, Any] = {}
        self.before: dict[str, int] = {}
        self.now: dict[str, str] = {}

    def knows(self, variables: Mapping[str, str]) -> bool:
        """Whether the library has these variables, and takes these values; none are changed."""
        before = dict(self.now)
        try:
            self.tell(variables)
        except ToldError:
            return False
        finally:
            self.tell(before)
        return True

    def tell(self, variables: Mapping[str, str]) -> None:
        """Set these, and all others as they were before any was set. Raises ToldError."""
        for name in self.now.keys() - variables.keys():
            self._write(name, self.before[name])
            del self.now[name]
        for name, word in variables.items():
            if self.now.get(name) != word:
                if name not in self.before:
                    self.before[name] = read_variable(self.mpi, self._handle(name))
                self._write(name, self._number(name, word))
                self.now[name] = word

    def _number(self, name: str, word: str) -> int:
        if word.isdigit():
            return int(word)
        if (name, word) not in self.numbers:
            raise ToldError(f"{name}: the library does not know {word}")
        return self.numbers[name, word]

    def _handle(self, name: str) -> Any:
        if not self.handles:
            start_tools(self.mpi)
        if name not in self.handles:
            self.handles[name] = handle_of(self.mpi, name)
        return self.handles[name]

    def _write(self, name: str, number: int) -> None:
        value = (ctypes.c_char * ROOM).from_buffer_copy(number.to_bytes(ROOM, sys.byteorder, signed=True))
        if self.mpi.MPI_T_cvar_write(self._handle(name), value) != 0:
            raise ToldError(f"{name}: the library does not take {number}")


def loaded_library() -> str:
    """The file of the MPI library that this process has. Raises ToldError where it has none."""
    files = {
        line.split(maxsplit=5)[5].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line
    }
    found = sorted(file for file in files if Path(file).name.startswith("libmpi.so"))
    if not found:
        raise ToldError("no MPI library is loaded (libmpi.so)")
    return found[0]


def start_tools(mpi: ctypes.CDLL) -> None:
    """Raises ToldError where there are none."""
    provided = ctypes.c_int()
    if not hasattr(mpi, "MPI_T_init_thread") or mpi.MPI_T_init_thread(0, ctypes.byref(provided)) != 0:
        raise ToldError("the MPI library has no tools interface (MPI_T), so it cannot be told its algorithms")


def handle_of(mpi: ctypes.CDLL, variable: str) -> Any:
    """Raises ToldError for a variable that the library does not have."""
    index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    name = variable.removeprefix(MCA).encode()
    if mpi.MPI_T_cvar_get_index(name, ctypes.byref(index)) != 0:
        raise ToldError(f"the library has no {variable}")
    if mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)) != 0 or count.value != 1:
        raise ToldError(f"{variable} is no number")
    return handle


def read_variable(mpi: ctypes.CDLL, handle: Any) -> int:
    value = (ctypes.c_char * ROOM)()
    if mpi.MPI_T_cvar_read(handle, value) != 0:
        raise ToldError("the library does not tell a variable's value")
    return int.from_bytes(bytes(value)[:4], sys.byteorder, signed=True)


def numbers_of(library: str, words: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The numbers behind words, such as MPICH's for its algorithms: what a process that has them in its environment reads back.

    A word that the library does not know is left out: what it reads for it is what it reads for any nonsense.
    """
    asked = sorted(set(words))
    if not asked:
        return {}
    command = [sys.executable, "-m", __name__, library, *(text for pair in asked for text in pair)]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    found = {}
    for line in told.splitlines():
        name, word, number = line.split()
        found[name, word] = int(number)
    return found


def main() -> None:
    """One forked process for each word, since a process reads its environment once. What MPI has it in its environment stays out of this."""
    library, *texts = sys.argv[1:]
    pairs = [*zip(texts[::2], texts[1::2], strict=True)]
    for name, word in pairs:
        number, of_nonsense = (reading(library, name, text) for text in (word, "no such word"))
        if number is not None and number != of_nonsense:
            print(name, word, number)


def reading(library: str, name: str, word: str) -> int | None:
    """What a new process reads that has this word in its environment."""
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
