"""Which ABI an MPI library has."""

import subprocess
from pathlib import Path

from tests.native import FLAGS, NATIVE

MPI_ABI = [str(NATIVE / "mpi_abi/mpi_abi.c"), str(NATIVE / "common/log.c")]
PROGRAMS = Path(__file__).parent / "programs"


def test_the_abi_of_each_library(tmp_path: Path) -> None:
    """Open MPI 6 has both ABIs, in two libraries that depend on a third one with its objects."""

    def shared_library(output: str, source: str, *options: str) -> Path:
        command = ["cc", "-x", "c", "-", "-shared", "-fPIC", f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
        subprocess.run([*command, "-o", output, *options], input=source, text=True, check=True, cwd=tmp_path)
        return tmp_path / output

    program = tmp_path / "which_abi"
    subprocess.run(["cc", *FLAGS, "-o", program, PROGRAMS / "which_abi.c", *MPI_ABI, "-ldl"], check=True)
    shared_library("libopen_mpi.so", "char ompi_mpi_comm_world;")
    functions, with_objects = "int PMPI_Init(void) { return 0; }", ("-Wl,--no-as-needed", "-lopen_mpi")
    (tmp_path / "libmpi_abi").mkdir()
    libraries = [
        shared_library("libmpi_abi.so.0", functions, *with_objects),
        shared_library("libmpi.so.80", functions, *with_objects),
        shared_library("libmpi_abi/libmpi.so.12", functions),
    ]
    done = subprocess.run([program, *libraries], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["MPI ABI", "Open MPI", "MPICH", ""]
