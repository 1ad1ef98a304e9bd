"""A flavour's or placement's name appears only in its own file; differences are
attributes there.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hvscale
from hvscale.launch import environment, flavours, placements
from hvscale.launch.flavours import RankVariables

PACKAGE = Path(hvscale.__file__).parent
# Uses of the same word with another meaning, by file.
OTHER_MEANINGS = {
    "bench/collectives/backends/__init__.py": {"host"},  # the memory of messages
    "bench/collectives/backends/horovod.py": {"gloo"},  # Horovod's name for its transport
    "bench/collectives/backends/mpi.py": {"host"},
    "bench/collectives/backends/torch_distributed.py": {"gloo"},  # a back end of torch.distributed
    "bench/collectives/controller.py": {"host"},
    "bench/collectives/request.py": {"host"},
    "bench/gpu_check/steps/collectives.py": {"gloo"},  # a back end of bench
    "bench/param_server/study.py": {"gloo"},  # a back end of bench
    "comm_tuning/autotune/rank_side/switch.py": {"gloo"},  # Horovod's name for its transport
    "comm_tuning/collectives/measure/rank.py": {"host"},
    "launch/flavours/openmpi.py": {"ssh"},  # how Open MPI's mpirun starts its daemons
    "launch/mpi/hydra.py": {"ssh"},  # how Hydra starts its proxies
    "profiling/read/nccl_file.py": {"host"},  # a field of the header
    "profiling/read/profile_file.py": {"host"},
    "profiling/read/ring_file.py": {"host"},
}
DEFAULTS = {
    "launch/flavours/__init__.py": {flavours.DEFAULT},
    "core/run_folder.py": {placements.DEFAULT_PLACEMENT},
}
ALLOWED = [OTHER_MEANINGS, DEFAULTS]


def literals(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_names_of_flavours_and_placements_appear_only_in_their_own_files() -> None:
    names = {*flavours.names(), *placements.names()}
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE).as_posix()
        allowed = set().union(*(known.get(path, set()) for known in ALLOWED))
        # Files of a knob library, of a table format and of a single placement start with the name.
        allowed |= {name for name in names if file.stem.lstrip("_").startswith(name.partition(":")[0])}
        found += [f"{path}:{line}: {text!r}" for line, text in literals(file) if text in names - allowed]
    assert found == []


def test_words_with_other_meanings_are_up_to_date() -> None:
    for path, words in OTHER_MEANINGS.items():
        assert words <= {text for _, text in literals(PACKAGE / path)}, path


def test_rank_variables_of_each_launcher_with_slurm_s_last() -> None:
    known = flavours.all_rank_variables()
    assert {one.rank for one in known} == {"OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"}
    assert [one.rank for one in known][-1] == "PMI_RANK"
    for flavour in flavours.FLAVOURS.all().values():
        assert flavour.rank_variables, flavour.name
        assert flavour.library_name, flavour.name
        assert flavour.help, flavour.name


def test_a_flavour_s_variables_pass_only_if_it_lists_them() -> None:
    caller = {
        "OMPI_MCA_pml": "ob1",
        "MV2_X": "1",
        "I_MPI_PIN": "1",
        "I_MPI_ROOT": "/opt",
        "HOME": "/root",
        "OTHER": "1",
    }
    assert environment.inherited_variables(caller) == {"I_MPI_ROOT": "/opt", "HOME": "/root"}
    assert environment.dropped_variables({}, caller) == ["I_MPI_PIN", "I_MPI_ROOT", "MV2_X", "OMPI_MCA_pml"]
    assert environment.has_public_value("HYDRA_BINDING")


@pytest.mark.parametrize("name", flavours.names())
def test_rank_variables_are_complete(name: str) -> None:
    assert all(isinstance(one, RankVariables) and one.local_rank for one in flavours.get(name).rank_variables)


def test_the_help_names_every_flavour_and_placement() -> None:
    assert all(name in flavours.mpi_help() for name in flavours.names())
    assert "ob1, ucx or cm (openmpi)" in flavours.transport_help()
    assert all(name in placements.placement_help() for name in placements.names())


def test_the_nccl_plugin_knows_every_launcher_s_variables() -> None:
    """The C code has a copy, because it also runs in programs that hvscale did not start."""
    sources = Path(__file__).parents[2].glob("native/nccl_plugin/*.c")
    text = "".join(source.read_text() for source in sources)
    for one in flavours.all_rank_variables():
        assert f'{{"{one.rank}", "{one.size}"}}' in text, one.rank
