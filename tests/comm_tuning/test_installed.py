"""Checks the knobs of each library against the installed library."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hvscale.comm_tuning.knobs.libraries.openmpi import TUNED_FIRST
from hvscale.comm_tuning.knobs.libraries.ucx import TRANSPORTS
from hvscale.comm_tuning.knobs.library import KnobLibrary, Spelling, libraries
from hvscale.comm_tuning.knobs.values import OneOf
from hvscale.launch.effective_settings import horovod
from hvscale.launch.flavours import openmpi
from hvscale.launch.flavours.openmpi import Parameter
from hvscale.launch.mpi.horovod_build import library_in
from tests.comm_tuning.test_values import values_of
from tests.conftest import HANG_SECONDS, LOOPBACK_ONLY, MPICH_PREFIX, PROGRAMS, needs_mpich

LIBRARIES = {library.key: library for library in libraries()}
PREFIX = Path(sys.prefix)
UCX_FOLDERS = [PREFIX / "lib/openmpi", pytest.param(MPICH_PREFIX / "lib/mpich", marks=needs_mpich)]
# Like `ucx_info -c -f`, which the wheels do not contain.
PRINT_UCX = """
import ctypes, sys
ucs, ucp = (ctypes.CDLL(f"{sys.argv[1]}/lib{name}.so.0", ctypes.RTLD_GLOBAL) for name in ("ucs", "ucp"))
assert ucp.ucp_config_read(None, None, ctypes.byref(ctypes.c_void_p())) == 0
libc = ctypes.CDLL(None)
known = ctypes.byref(ctypes.c_char.in_dll(ucs, "ucs_config_global_list"))
ucs.ucs_config_parser_print_all_opts(ctypes.c_void_p.in_dll(libc, "stdout"), b"UCX_", 15, known, None)
libc.fflush(None)
"""


def output_of(*command: str | Path, **environment: str) -> str:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    ).stdout


def variables_of(key: str, prefix: str) -> list[tuple[Spelling, str, str]]:
    """The library's variables with this prefix, each with its spelling and default."""
    found = [
        (one, name, default)
        for one in LIBRARIES[key].spellings
        for name, default in one.variables.items()
        if name.startswith(prefix)
    ]
    assert found
    return found


# Open MPI


def ompi_info(**environment: str) -> dict[str, Parameter]:
    """Open MPI's parameters, without those that a file in the user's home folder sets."""
    return openmpi.parse(output_of(PROGRAMS / "ompi_info", "--all", "--parsable", HOME="/", **environment))


def test_open_mpi_s_parameters_and_defaults() -> None:
    known = ompi_info()
    with_cuda = known["opal_built_with_cuda_support"].value == "true"
    for spelling, variable, default in variables_of("openmpi", openmpi.PREFIX):
        name = variable.removeprefix(openmpi.PREFIX)
        if spelling.build == "CUDA" and not with_cuda:
            assert name not in known
        else:
            assert known[name].value == default, variable


def test_open_mpi_s_algorithms_are_complete_and_accepted() -> None:
    known = ompi_info()
    for spelling, variable, _ in variables_of("openmpi", f"{openmpi.PREFIX}coll"):
        if isinstance(spelling.values, OneOf):
            names = known[variable.removeprefix(openmpi.PREFIX)].names
            assert sorted(names) == sorted(spelling.values.words.values())
            for word in spelling.values.words:
                taken = ompi_info(**spelling.write(word))[variable.removeprefix(openmpi.PREFIX)].value
                assert taken == names[spelling.values.write(word)]


@settings(max_examples=5, phases=(Phase.generate,))
@given(data=st.data())
def test_open_mpi_accepts_any_number_in_range(data: st.DataObject) -> None:
    known = ompi_info()
    for spelling, variable, _ in variables_of("openmpi", openmpi.PREFIX):
        name = variable.removeprefix(openmpi.PREFIX)
        if name in known and not isinstance(spelling.values, OneOf):
            written = spelling.write(data.draw(values_of(spelling.values)))
            assert openmpi.is_same_value(written[variable], ompi_info(**written)[name].value)


def test_the_priority_of_coll_tuned() -> None:
    known = ompi_info()
    priority = int(TUNED_FIRST["OMPI_MCA_coll_tuned_priority"])

    def of_component(name: str) -> int | None:
        parameter = known.get(f"coll_{name}_priority")
        return int(parameter.value) if parameter else None

    assert all(
        (of_component(name) or 0) < priority for name in ("han", "tuned", "adapt", "basic", "libnbc", "sm", "xhc")
    )
    assert all((of_component(name) or 100) > priority for name in ("sync", "self", "accelerator", "cuda"))


def test_open_mpi_s_transports_and_binding() -> None:
    found = re.findall(r"^mca:pml:(\w+):version", output_of(PROGRAMS / "ompi_info", "--parsable"), re.MULTILINE)
    transports = next(one for one in LIBRARIES["openmpi"].spellings if one.knob == "transport").values
    assert isinstance(transports, OneOf)
    assert set(transports.words) <= set(found)
    [(_, variable, _)] = variables_of("openmpi", "PRTE_MCA_")
    runtime = next(PREFIX.glob("lib/**/libprrte.so*"))
    assert variable.removeprefix("PRTE_MCA_").encode() in runtime.read_bytes()


# UCX


def ucx(folder: Path, **environment: str) -> tuple[dict[str, str], str]:
    """UCX's variables with their values, and the complete output."""
    text = output_of(sys.executable, "-c", PRINT_UCX, folder, **environment)
    return dict(re.findall(r"^(UCX_\w+)=(.*)$", text, re.MULTILINE)), text


@pytest.mark.parametrize("folder", UCX_FOLDERS)
def test_ucx_s_variables_and_defaults(folder: Path) -> None:
    values, text = ucx(folder)
    for _, name, default in variables_of("ucx", "UCX_"):
        assert values[name] == default, name
    described = set(re.findall(r"^#  - ([\w/]+) +:", text, re.MULTILINE))
    libraries = b"".join(path.read_bytes() for path in folder.rglob("*uc*.so*"))
    unknown = [
        name
        for name in TRANSPORTS
        if name not in "/".join(described).split("/") and b"\0" + name.encode() + b"\0" not in libraries
    ]
    # The wheels are built without these.
    assert set(unknown) <= {"xpmem", "knem", "ugni", "cuda_copy", "gdr_copy"}


@pytest.mark.parametrize("folder", UCX_FOLDERS)
@settings(max_examples=5, phases=(Phase.generate,))
@given(data=st.data())
def test_ucx_accepts_any_value(folder: Path, data: st.DataObject) -> None:
    for spelling, name, _ in variables_of("ucx", "UCX_"):
        written = spelling.write(data.draw(values_of(spelling.values)))
        shown, _ = ucx(folder, **written)
        if name == "UCX_RNDV_THRESH":
            assert shown[name] == f"intra:{units(written[name])},inter:{units(written[name])}"
        else:
            assert shown[name] == written[name]


def units(number: str) -> str:
    """As UCX writes a size: in the largest unit that divides it."""
    size, steps = int(number), ["", "K", "M", "G", "T"]
    while size and size % 1024 == 0 and len(steps) > 1:
        size, steps = size // 1024, steps[1:]
    return f"{size}{steps[0]}" if steps[0] or size else "0"


# MPICH


def mpivars(**environment: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The values, and for variables with named values the names in order of their numbers."""
    values: dict[str, str] = {}
    words: dict[str, list[str]] = {}
    name = ""
    for line in output_of(MPICH_PREFIX / "bin/mpivars", **LOOPBACK_ONLY, **environment).splitlines():
        if match := re.match(r"\t(\w+) *=(.*?)\tSCOPE", line):
            name = match[1]
            values[name], words[name] = match[2], []
        elif match := re.match(r"(\w+) +- ", line):
            words[name].append(match[1])
    return values, words


@needs_mpich
def test_mpich_s_variables_defaults_and_words() -> None:
    values, words = mpivars()
    for spelling, name, default in variables_of("mpich", "MPIR_CVAR_"):
        if isinstance(spelling.values, OneOf):
            assert words[name][int(values[name])] == default
            assert set(spelling.values.words.values()) <= set(words[name])
            for word, library_word in spelling.values.words.items():
                taken, _ = mpivars(**spelling.write(word))
                assert words[name][int(taken[name])] == library_word
        else:
            assert values[name] == default, name
        assert set(spelling.also_set) <= set(values)


@needs_mpich
@settings(max_examples=5, phases=(Phase.generate,))
@given(data=st.data())
def test_mpich_accepts_any_number_in_range(data: st.DataObject) -> None:
    for spelling, name, _ in variables_of("mpich", "MPIR_CVAR_"):
        if not isinstance(spelling.values, OneOf):
            written = spelling.write(data.draw(values_of(spelling.values)))
            assert mpivars(**written)[0][name] == written[name]


@needs_mpich
def test_mpich_s_transports_binding_and_libfabric_s_variables() -> None:
    device = output_of(MPICH_PREFIX / "bin/mpichversion")
    transports = next(one for one in LIBRARIES["mpich"].spellings if one.knob == "transport").values
    assert isinstance(transports, OneOf)
    assert set(transports.words) == set(re.search(r"ch4:(.*)", device)[1].split())  # type: ignore[index]
    assert b"HYDRA_BINDING\0" in (MPICH_PREFIX / "bin/mpiexec.hydra").read_bytes()
    libfabric = (MPICH_PREFIX / "lib/mpich/libfabric.so.1").read_bytes()
    for _, name, _ in variables_of("mpich", "FI_"):
        assert name.removeprefix("FI_").removeprefix("TCP_").lower().encode() + b"\0" in libfabric


# Horovod, Gloo, NCCL, OpenMP, MVAPICH2


@pytest.mark.parametrize("key", ["horovod", "gloo"])
def test_horovod_names_its_and_gloo_s_variables(key: str) -> None:
    library = library_in(PREFIX)
    assert library is not None
    assert {name for _, name, _ in variables_of(key, "HOROVOD_")} <= horovod.names_in(library)


def test_horovod_s_defaults() -> None:
    # The help leaves some brackets open.
    help_text = " ".join(output_of(PROGRAMS / "horovodrun", "--help").split())
    defaults = {name: default for _, name, default in variables_of("horovod", "HOROVOD_")}
    for option, name, factor in [
        ("fusion-threshold-mb", "HOROVOD_FUSION_THRESHOLD", 1 << 20),
        ("cycle-time-ms", "HOROVOD_CYCLE_TIME", 1),
        ("cache-capacity", "HOROVOD_CACHE_CAPACITY", 1),
    ]:
        documented = re.search(
            rf"--{option} [A-Z_]+ [^(]*\(default: (\d+)", help_text.partition("tuneable parameter")[2]
        )
        assert documented is not None, option
        assert int(documented[1]) * factor == int(defaults[name])


def test_nccl_names_its_variables_and_words() -> None:
    found = list(PREFIX.glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    if not found:
        pytest.skip("no NCCL wheel here")
    texts = found[0].read_bytes()
    for spelling, name, _ in variables_of("nccl", "NCCL_"):
        assert name.encode() + b"\0" in texts, name
        if isinstance(spelling.values, OneOf) and name in ("NCCL_ALGO", "NCCL_PROTO"):
            words = [word for value in spelling.values.words.values() for word in re.split("[;:,]", value)]
            named = ["AllReduce" if word == "allreduce" else word for word in words]  # in any case
            assert all(word.encode() + b"\0" in texts for word in named)


def test_pytorch_uses_openmp_s_thread_count() -> None:
    [(spelling, _, _)] = variables_of("openmp", "OMP_")
    program = "import torch; print(torch.get_num_threads())"
    assert output_of(sys.executable, "-c", program, **spelling.write(1)).strip() == "1"


@pytest.mark.parametrize("library", [LIBRARIES["mvapich2"], LIBRARIES["mvapich2-gdr"]], ids=lambda library: library.key)
def test_mvapich2_names_its_variables(library: KnobLibrary) -> None:
    namer = shutil.which("mpiname")
    if namer is None or ("GDR" in output_of(namer)) != library.key.endswith("gdr"):
        pytest.skip(f"no {library.name} here")
    texts = b"".join(path.read_bytes() for path in Path(namer).resolve().parent.parent.glob("lib*/libmpi.so.12"))
    for _, name, _ in variables_of(library.key, "MV2_"):
        assert name.encode() in texts, name
