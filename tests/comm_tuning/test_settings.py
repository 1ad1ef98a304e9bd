"""Translates settings for libraries that need not be installed."""

from collections.abc import Mapping

import pytest

from hvscale.comm_tuning.collectives.broadcast import library_path
from hvscale.comm_tuning.collectives.measure.candidates import candidates
from hvscale.comm_tuning.collectives.options import check_knobs
from hvscale.comm_tuning.knobs.library import Target, spelling_of
from hvscale.comm_tuning.knobs.settings import Translated, check_ranks, parse, translate, with_settings
from hvscale.comm_tuning.knobs.table import knobs
from hvscale.core.errors import ConflictError, RequestError
from hvscale.launch.options import LaunchOptions


def translated(
    requests: list[str], flavour: str, version: str, transport: str = "", environment: Mapping[str, str] | None = None
) -> Translated:
    return translate(parse(requests), Target(flavour, version, transport, ["no-such-program"], environment or {}))


def test_mvapich2_gdr_has_its_own_device_list() -> None:
    found = translated(["cuda_ipc=on", "registration_cache=on", "visible_devices=split"], "mvapich2", "2.3.7-GDR")
    assert found.variables == {"MV2_CUDA_IPC": "1", "MV2_USE_LAZY_MEM_UNREGISTER": "1"}
    assert found.options == {"--devices": "split"}
    with pytest.raises(RequestError, match="split needs MVAPICH2-GDR, which this job does not use"):
        translated(["visible_devices=split"], "mvapich2", "2.3.7")


def test_mvapich2_s_eager_buffers_grow_with_the_threshold() -> None:
    found = translated(["eager_threshold=64K", "binding=numa"], "mvapich2", "2.3.7")
    assert found.variables == {
        "MV2_IBA_EAGER_THRESHOLD": "65536",
        "MV2_VBUF_TOTAL_SIZE": "65536",
        "MV2_CPU_BINDING_LEVEL": "numanode",
    }
    assert found.also_set["MV2_ENABLE_AFFINITY"] == "1"


def test_the_transport_determines_the_library_of_a_knob() -> None:
    assert translated(["eager_threshold=1M"], "mpich", "5.0.2", "ucx").variables == {"UCX_RNDV_THRESH": "1048576"}
    over_ofi = translated(["eager_threshold=1M"], "mpich", "5.0.2", "ofi").variables
    assert over_ofi == {"MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "1048576"}
    assert translated(["cuda_ipc=off"], "openmpi", "5.0.11", "ucx").variables == {"UCX_TLS": "^cuda_ipc"}
    with pytest.raises(RequestError, match="openmpi does not have this knob over cm; use --transport ob1"):
        translated(["eager_threshold=1M"], "openmpi", "5.0.11", "cm")


def test_tune_collectives_refuses_a_value_for_what_it_chooses() -> None:
    check_knobs(LaunchOptions.of(set=["yield_when_idle=on", "gather_algorithm=linear"]), ["allreduce"])
    for one in ("allreduce_algorithm=ring", "segment-size=64K"):
        with pytest.raises(RequestError, match=r"=.*: tune-collectives chooses it, so it cannot be set: remove it"):
            check_knobs(LaunchOptions.of(set=[one]), ["allreduce"])
    with pytest.raises(RequestError, match=r"^hvscale_broadcast=chain: tune-collectives chooses it"):
        check_knobs(LaunchOptions.of(set=["hvscale_broadcast=chain"]), ["allreduce", "broadcast"])


@pytest.mark.parametrize("size", ["79", "2G"])
def test_open_mpi_fails_or_hangs_with_these_eager_limits(size: str) -> None:
    with pytest.raises(RequestError, match="Open MPI accepts 80 to 2147483647"):
        translated([f"eager_threshold={size}"], "openmpi", "5.0.11", "ob1")


def test_also_set_depends_on_the_value() -> None:
    assert translated(["cuda_ipc=off"], "mpich", "5.0.2", "ofi").also_set == {"MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR": "0"}
    assert translated(["cuda_ipc=on"], "mpich", "5.0.2", "ofi").also_set == {}


def test_hvscale_s_broadcast_is_preloaded_beside_the_user_s_libraries() -> None:
    found = translated(["hvscale_broadcast=two_level"], "mpich", "5.0.2")
    assert found.variables == {"HVBCAST_ALGORITHM": "two-level"}
    assert found.preload == {"LD_PRELOAD": str(library_path())}
    own = translated(["hvscale_broadcast=chain"], "openmpi", "5.0.11", environment={"LD_PRELOAD": "mine.so"})
    assert own.preload == {"LD_PRELOAD": f"{library_path()}:mine.so"}
    assert translated(["hvscale_broadcast=chain"], "openmpi", "5.0.11", environment=own.preload).preload == own.preload
    assert translated(["hvscale_broadcast=off"], "openmpi", "5.0.11").preload == {}
    with pytest.raises(RequestError, match=r"gloo .*does not have this knob; only hvscale's broadcast"):
        translated(["hvscale_broadcast=chain"], "gloo", "0.28.1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0:glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        (":glibc.malloc.hugetlb=1:", "glibc.malloc.hugetlb=1"),
    ],
)
def test_huge_pages_keep_other_tunables(before: str, after: str) -> None:
    found = translated(["huge_pages=on"], "gloo", "0.28.1", environment={"GLIBC_TUNABLES": before})
    assert found.variables == {"GLIBC_TUNABLES": after}
    again = translated(["huge_pages=on"], "gloo", "0.28.1", environment=found.variables)
    assert again.variables == found.variables


@pytest.mark.parametrize(
    ("tunables", "value"),
    [
        ("glibc.malloc.hugetlb=0", False),
        ("glibc.malloc.arena_max=1", False),
        ("glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1", True),
        ("glibc.malloc.hugetlb=0:glibc.malloc.hugetlb=1", True),
        ("", False),
    ],
)
def test_the_last_of_several_tunables_counts(tunables: str, value: bool) -> None:
    spelling = spelling_of("glibc", "huge_pages")
    assert spelling is not None
    assert spelling.read({"GLIBC_TUNABLES": tunables}) is value


def test_tunables_on_the_command_line_are_kept_or_contradict() -> None:
    def with_env(*env: str) -> tuple[str, ...]:
        return with_settings(["huge_pages=on"], ["no-such-program"], LaunchOptions(np=2, mpi="gloo", env=env)).env

    both = "GLIBC_TUNABLES=glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"
    assert with_env("GLIBC_TUNABLES=glibc.malloc.arena_max=1") == ("GLIBC_TUNABLES=glibc.malloc.arena_max=1", both)
    assert with_env(both) == (both,)
    message = "--env GLIBC_TUNABLES=glibc.malloc.hugetlb=0 and huge_pages=on ask for different values"
    with pytest.raises(ConflictError, match=message):
        with_env("GLIBC_TUNABLES=glibc.malloc.hugetlb=0")


def test_nccl_s_knobs_apply_to_any_job() -> None:
    found = translated(["nccl_channels=8", "nccl_buffer_size=8M", "nccl_protocol=LL128"], "gloo", "")
    assert found.variables == {
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_MAX_NCHANNELS": "8",
        "NCCL_BUFFSIZE": "8388608",
        "NCCL_PROTO": "LL128",
    }
    assert translated(["nccl_algorithm=ring"], "gloo", "").variables == {"NCCL_ALGO": "Ring"}


def lists_before_2_24(value: str) -> dict[str, list[str]]:
    """NCCL_ALGO's lists as NCCL before 2.24 reads them: unknown words are skipped."""
    known = [word for word in value.split(",") if word in ("Ring", "Tree", "NVLS")]
    return {"broadcast": known, "allreduce": known}


def lists_from_2_24(value: str) -> dict[str, list[str]]:
    """NCCL_ALGO's lists as NCCL's user guide describes them since 2.24."""
    first, *others = value.split(";")
    every = dict.fromkeys(("broadcast", "allreduce"), first.split(","))
    return every | {function: words.split(",") for function, words in (other.split(":") for other in others)}


@pytest.mark.parametrize(("word", "algorithm"), [("tree", "Tree"), ("nvls", "NVLS")])
def test_an_algorithm_of_nccl_s_all_reduce_leaves_ring_to_its_broadcasts(word: str, algorithm: str) -> None:
    value = translated([f"nccl_algorithm={word}"], "gloo", "").variables["NCCL_ALGO"]
    assert lists_from_2_24(value) == {"broadcast": ["Ring"], "allreduce": [algorithm, algorithm]}
    # There, a function without this algorithm falls back to ring.
    assert lists_before_2_24(value) == {"broadcast": [algorithm], "allreduce": [algorithm]}


@pytest.mark.parametrize(
    ("algorithm", "allowed", "refused", "needs"),
    [
        ("two_ranks", (1, 2), (3, 4), "2 ranks"),
        ("neighbor_exchange", (1, 2, 6), (3, 5), "an even number of ranks"),
        ("recursive_doubling", (1, 2, 8), (3, 6), "a power-of-two number of ranks"),
        ("ring", (1, 2, 3, 4), (), ""),
    ],
)
def test_an_algorithm_is_refused_on_ranks_that_it_does_not_support(
    algorithm: str, allowed: tuple[int, ...], refused: tuple[int, ...], needs: str
) -> None:
    settings = parse([f"allgather_algorithm={algorithm}"])
    target = Target("openmpi", "5.0.11", "ob1", ["python"], {})
    for np in allowed:
        check_ranks(settings, target, np)
    for np in refused:
        with pytest.raises(RequestError, match=f"^--set allgather_algorithm={algorithm}: it needs {needs}, not {np}: "):
            check_ranks(settings, target, np)
    measured = {one.choice.library_algorithm for one in candidates("openmpi", "allgather", 3)}
    assert (algorithm in measured) == (3 not in refused)


def test_a_knob_that_the_library_lacks_is_an_error_and_no_empty_list() -> None:
    assert [row.library for row in knobs("openmpi", "segment_size").rows] == ["Open MPI"]
    with pytest.raises(RequestError, match="mvapich2-gdr: not in openmpi; leave out --mpi"):
        knobs("openmpi", "mvapich2-gdr")
