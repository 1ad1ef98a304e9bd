"""MPICH tells the values of its control variables through MPI_T: a process of its own, with the job's variables, is asked."""

import json
import subprocess
import sys
from pathlib import Path

from hvscale.core.run_folder import InEffect
from hvscale.launch.effective_settings import Started, register

PREFIX = "MPIR_CVAR_"
# Handles of MPICH's ABI for the types that its control variables have, and how ctypes calls them.
ASK_LIBRARY = """
import ctypes, json, sys
types = {0x4c000405: ctypes.c_int, 0x4c000406: ctypes.c_uint, 0x4c000808: ctypes.c_ulong, 0x4c000819: ctypes.c_ulonglong,
         0x4c00080b: ctypes.c_double}
mpi = ctypes.CDLL(sys.argv[1])
integer, byref = ctypes.c_int, ctypes.byref
if mpi.MPI_T_init_thread(0, byref(integer())) != 0 or mpi.MPI_Init(None, None) != 0:
    sys.exit(1)
count, found = integer(), {}
mpi.MPI_T_cvar_get_num(byref(count))
for index in range(count.value):
    name, length, verbosity, kind, enumeration = ctypes.create_string_buffer(256), integer(256), integer(), integer(), ctypes.c_void_p()
    binding, scope, none = integer(), integer(), integer(0)
    mpi.MPI_T_cvar_get_info(index, name, byref(length), byref(verbosity), byref(kind), byref(enumeration), None, byref(none),
                            byref(binding), byref(scope))
    handle, items = ctypes.c_void_p(), integer()
    if mpi.MPI_T_cvar_handle_alloc(index, None, byref(handle), byref(items)) != 0:
        continue
    if kind.value in types:
        values = (types[kind.value] * max(items.value, 1))()
        mpi.MPI_T_cvar_read(handle, values)
        found[name.value.decode()] = ",".join(map(str, values[:items.value]))
    else:
        text = ctypes.create_string_buffer(max(items.value, 1) + 4096)
        mpi.MPI_T_cvar_read(handle, text)
        found[name.value.decode()] = text.value.decode(errors="replace")
print(json.dumps(found), flush=True)
mpi.MPI_Finalize()
"""
ASK_SECONDS = 30
SWITCHES = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


class MPICH:
    def ask(self, started: Started) -> dict[str, str]:
        return {}

    def read(self, started: Started, ended: bool) -> InEffect | None:
        asked = started.asked(PREFIX)
        library = next(Path(started.library.launcher or "/").parent.parent.glob("lib*/libmpi.so.12"), None)
        if started.library.flavour != "mpich" or not asked or library is None:
            return None
        command = [sys.executable, "-I", "-S", "-c", ASK_LIBRARY, str(library)]
        try:
            told = subprocess.run(
                command, env=dict(started.environment), capture_output=True, text=True, timeout=ASK_SECONDS
            )
            values: dict[str, str] = json.loads(told.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        not_taken = {name: why for name, value in asked.items() if (why := _why(value, values.get(name))) is not None}
        settings = {name: values[name] for name in asked if values.get(name)}
        return InEffect(library=f"MPICH {started.library.version}", settings=settings, not_taken=not_taken)


def _why(asked: str, used: str | None) -> str | None:
    if used is None:
        return "MPICH knows no such variable"
    # MPI_T gives words back as empty, whatever they are.
    if used == "":
        return None
    # Values of a list are told by their numbers.
    by_number = used.lstrip("-").isdigit() and not asked.lstrip("-").isdigit() and asked.lower() not in SWITCHES
    same = by_number or used == SWITCHES.get(asked.lower(), asked)
    return None if same else f"{asked} was asked for, {used} is in effect"


register("mpich", MPICH())
