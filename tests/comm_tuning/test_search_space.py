"""The search space: one entry per knob, knobs excluded by the profile, and only valid points."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.comm_tuning.knobs.library import MEANING, Target, libraries
from hvscale.comm_tuning.knobs.settings import Setting, translate
from hvscale.comm_tuning.tune import search_space
from hvscale.comm_tuning.tune.document import KnobChoice
from hvscale.comm_tuning.tune.job_profile import JobProfile, OperationMessages
from hvscale.comm_tuning.tune.job_space import check_names, choices, fixed_settings, space_of, without_orphans
from hvscale.comm_tuning.tune.search_space import DEFAULT, PROMISING, SEARCH_SPACE
from hvscale.core.errors import RequestError
from hvscale.core.units import KIB, MIB

FLAVOURS = {"openmpi": ("5.0.11", ("ob1", "ucx", "auto")), "mpich": ("5.0.2", ("ofi", "ucx")), "gloo": ("", ("tcp",))}
WITH_SEGMENTS = {
    "segmented_ring",
    "tree",
    "chain",
    "pipeline",
    "split_binary_tree",
    "binary_tree",
    "binomial",
    "pipelined_tree",
}


def target(flavour: str = "openmpi", transport: str = "ob1") -> Target:
    return Target(flavour, FLAVOURS[flavour][0], transport, ["python", "train.py"], {})


def profile_of(**facts: object) -> JobProfile:
    """A job on two nodes that needs most knobs; `facts` replaces fields."""
    fields = {
        "command": ("python", "train.py"),
        "np": 8,
        "nodes": 2,
        "ranks_per_node": 4,
        "cores": 16,
        "gpus": 0,
        "flavour": "openmpi",
        "transport": "ob1",
        "source": "hvprof",
        "horovod": True,
        "step_bytes": None,
        "messages": {
            "allreduce": OperationMessages(100, 64 * MIB, 0.9),
            "broadcast": OperationMessages(10, 16 * MIB, 0.1),
        },
    }
    return JobProfile(**{**fields, **facts})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modes of a machine that gives huge pages to programs that ask for them."""
    path = tmp_path_factory.mktemp("transparent_hugepage") / "enabled"
    path.write_text("always [madvise] never\n")
    monkeypatch.setattr(search_space, "HUGE_PAGE_MODES", path)
    return path


def choices_by_knob(
    facts: JobProfile,
    job: Target | None = None,
    knobs: list[str] | None = None,
    fixed: dict[str, str] | None = None,
    given: dict[str, str] | None = None,
) -> dict[str, KnobChoice]:
    listed = without_orphans(choices(job or target(), facts, knobs, fixed or {}, given or {}))
    assert sorted(choice.knob for choice in listed) == sorted(MEANING)
    return {choice.knob: choice for choice in listed}


def test_every_knob_has_one_entry_and_every_value_is_valid_in_a_library() -> None:
    assert sorted(entry.knob for entry in SEARCH_SPACE) == sorted(MEANING)
    spellings = [spelling for library in libraries() for spelling in library.spellings]
    for entry in SEARCH_SPACE:
        assert entry.values or entry.only_if_named
        for value in entry.values(profile_of()) if callable(entry.values) else entry.values:
            libraries_with_value = 0
            for spelling in spellings:
                if spelling.knob == entry.knob:
                    try:
                        spelling.values.parse(value)
                        libraries_with_value += 1
                    except ValueError:
                        pass
            assert libraries_with_value, f"no library takes {entry.knob}={value}"


@pytest.mark.parametrize("np", [3, 4])
def test_an_algorithm_is_searched_only_on_ranks_that_it_supports(np: int) -> None:
    job = target("mpich", "ucx")
    choice = choices_by_knob(profile_of(np=np, flavour="mpich", transport="ucx"), job)["broadcast_algorithm"]
    assert ("scatter_allgather" in choice.values) == (np == 4)


def test_relevant_knobs_are_searched() -> None:
    searched = {knob for knob, choice in choices_by_knob(profile_of()).items() if choice.values}
    assert searched == {
        *("fusion_threshold", "cycle_time", "allreduce_algorithm", "broadcast_algorithm", "segment_size"),
        *("hvscale_broadcast", "eager_threshold", "yield_when_idle", "binding", "threads", "huge_pages"),
    }


@pytest.mark.parametrize("modes", ["[always] madvise never\n", "always madvise [never]\n", None])
def test_huge_pages_are_searched_only_where_programs_may_ask_for_them(huge_pages: Path, modes: str | None) -> None:
    if modes is None:
        huge_pages.unlink()
    else:
        huge_pages.write_text(modes)
    choice = choices_by_knob(profile_of())["huge_pages"]
    assert (choice.values, choice.reason) == ([], f"programs cannot ask for huge pages: {huge_pages} is not madvise")


@pytest.mark.parametrize(
    ("facts", "knob", "reason"),
    [
        ({"horovod": False}, "fusion_threshold", "the profile shows no Horovod"),
        ({"messages": {"allreduce": OperationMessages(9, 8 * KIB, 1)}}, "segment_size", "no message above 1 MiB"),
        ({"messages": {"allreduce": OperationMessages(9, 8 * KIB, 1)}}, "eager_threshold", "no message above 16 KiB"),
        (
            {"messages": {"allreduce": OperationMessages(9, 64 * MIB, 1)}},
            "broadcast_algorithm",
            "no broadcast in the steps",
        ),
        (
            {"messages": {"allgather": OperationMessages(9, 64 * MIB, 1)}},
            "allreduce_algorithm",
            "no allreduce in the steps",
        ),
        (
            {"messages": {"allreduce": OperationMessages(9, MIB, 0.5), "broadcast": OperationMessages(9, KIB, 0.5)}},
            "hvscale_broadcast",
            "no broadcast of 64 KiB or more; the largest has 1 KiB",
        ),
        ({"step_bytes": MIB}, "fusion_threshold", "only one value: 128M"),
        ({"nodes": 1}, "eager_threshold", "only one node: shared memory has a separate limit"),
        ({"cores": 2}, "binding", "4 ranks share 2 cores"),
        ({"gpus": 4}, "threads", "the job computes on GPUs"),
        ({"gpus": 4}, "huge_pages", "the job computes on GPUs"),
        ({"command": ("hvscale", "train", "edsr")}, "threads", "hvscale train sets the threads itself"),
        ({}, "cuda_ipc", "no GPU"),
        ({}, "hierarchical_allreduce", "the profile shows no NCCL messages"),
        ({"source": "nccl", "nodes": 1}, "hierarchical_allreduce", "only one node"),
        ({}, "cache_capacity", "it matters only for models with more tensors than the default"),
        ({}, "nccl_protocol", "the profile shows no NCCL messages"),
        ({}, "transport", "it decides which other knobs exist"),
    ],
)
def test_the_profile_excludes_irrelevant_knobs(facts: dict[str, object], knob: str, reason: str) -> None:
    choice = choices_by_knob(profile_of(**facts))[knob]
    assert choice.values == []
    assert choice.reason.startswith(reason)


@pytest.mark.parametrize(
    ("flavour", "transport", "adapters", "nodes", "searched"),
    [
        ("openmpi", "ob1", ("mlx5_0",), 1, False),
        ("openmpi", "auto", (), 1, False),
        ("openmpi", "auto", ("mlx5_0",), 1, True),  # then Open MPI chooses UCX
        ("openmpi", "auto", (), 2, True),
        ("openmpi", "ucx", (), 1, True),
        ("mpich", "ofi", (), 1, False),
        ("mpich", "ofi", (), 2, True),
    ],
)
def test_the_eager_limit_is_searched_where_messages_depend_on_it(
    flavour: str,
    transport: str,
    adapters: tuple[str, ...],
    nodes: int,
    searched: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_space, "RDMA_ADAPTERS", tmp_path)
    for adapter in adapters:
        (tmp_path / adapter).mkdir()
    facts = profile_of(flavour=flavour, transport=transport, nodes=nodes)
    assert bool(choices_by_knob(facts, target(flavour, transport))["eager_threshold"].values) == searched


def test_a_broadcast_that_takes_no_time_is_not_tuned() -> None:
    messages = {"allreduce": OperationMessages(9, 64 * MIB, 0.998), "broadcast": OperationMessages(1, 8, 0.002)}
    choice = choices_by_knob(profile_of(messages=messages))["broadcast_algorithm"]
    assert (choice.values, choice.reason) == ([], "broadcast takes 0.2% of the communication time")


def test_fusion_buffers_larger_than_a_step_are_not_tried() -> None:
    assert choices_by_knob(profile_of(step_bytes=20 * MIB))["fusion_threshold"].values == [
        "1M",
        "4M",
        "8M",
        "16M",
        "128M",
    ]


def test_segment_size_needs_a_searched_algorithm_with_segments() -> None:
    fixed = choices_by_knob(
        profile_of(), fixed={"allreduce_algorithm": "ring"}, knobs=["segment_size", "eager_threshold"]
    )
    assert fixed["allreduce_algorithm"].reason == "fixed at ring"
    assert fixed["eager_threshold"].values
    assert fixed["segment_size"].values == []
    assert "allreduce_algorithm or broadcast_algorithm" in fixed["segment_size"].reason


def test_the_library_s_broadcasts_are_not_tuned_beside_hvscale_s() -> None:
    knobs = ["hvscale_broadcast", "broadcast_algorithm"]
    listed = choices_by_knob(profile_of(), knobs=knobs)
    space = space_of(list(listed.values()), target())
    points = [set(point) for point in space.points()]
    algorithms = len(listed["broadcast_algorithm"].values)
    assert (points.count(set(knobs)), points.count({"broadcast_algorithm"})) == (0, algorithms - 1)
    assert points.count({"hvscale_broadcast"}) == 2
    fixed = choices_by_knob(profile_of(), fixed={"hvscale_broadcast": "chain"})["broadcast_algorithm"]
    assert (fixed.values, fixed.reason) == ([], "it has next to no effect with hvscale_broadcast=chain")
    assert choices_by_knob(profile_of(), fixed={"hvscale_broadcast": "off"})["broadcast_algorithm"].values


def test_the_knobs_option_restricts_and_extends_the_search() -> None:
    named = choices_by_knob(profile_of(), knobs=["cache_capacity", "cycle_time"])
    assert {knob for knob, choice in named.items() if choice.values} == {"cache_capacity", "cycle_time"}
    assert named["fusion_threshold"].reason == "not among --knobs"
    with pytest.raises(RequestError, match="--knobs speed: unknown knob"):
        check_names(["speed"])
    with pytest.raises(RequestError, match="--knobs transport: it decides"):
        check_names(["transport"])
    with pytest.raises(RequestError, match="--fix speed=1: unknown knob"):
        fixed_settings(["speed=1"])


def test_values_include_the_default_in_order() -> None:
    listed = choices_by_knob(profile_of())
    assert listed["fusion_threshold"].values.index("128M") == 6
    assert listed["cycle_time"].values[:3] == ["0.1", "0.5", "1"]
    assert listed["segment_size"].values[0] == "0"
    assert listed["allreduce_algorithm"].values[0] == DEFAULT
    space = space_of(list(listed.values()), target())
    assert {one.knob: one.default for one in space.dimensions} == {
        "fusion_threshold": "128M",
        "cycle_time": "1",
        "allreduce_algorithm": DEFAULT,
        "broadcast_algorithm": DEFAULT,
        "hvscale_broadcast": "off",
        "segment_size": "0",
        "eager_threshold": "64K",
        "yield_when_idle": DEFAULT,
        "threads": DEFAULT,
        "huge_pages": "off",
        "binding": "none",
    }
    assert {one.knob for one in space.dimensions if one.at_init} == {"fusion_threshold", "cycle_time"}
    assert any(space.contains(settings) for settings in PROMISING)


def test_the_default_comes_from_the_environment() -> None:
    here = replace(target(), environment={"HOROVOD_CYCLE_TIME": "5", "HOROVOD_FUSION_THRESHOLD": "much"})
    listed = choices_by_knob(profile_of(), here)
    assert listed["cycle_time"].values == choices_by_knob(profile_of())["cycle_time"].values
    assert listed["fusion_threshold"].values[0] == DEFAULT
    defaults = {one.knob: one.default for one in space_of(list(listed.values()), here).dimensions}
    assert (defaults["cycle_time"], defaults["fusion_threshold"]) == ("5", DEFAULT)
    with pytest.raises(RequestError, match="HOROVOD_CYCLE_TIME in the environment has changed"):
        space_of(list(listed.values()), replace(here, environment={"HOROVOD_CYCLE_TIME": "7.7"}))


def test_a_variable_set_by_the_user_is_not_searched() -> None:
    listed = choices_by_knob(profile_of(), given={"HOROVOD_CYCLE_TIME": "5", "HOME": "/root"})
    assert (listed["cycle_time"].values, listed["cycle_time"].reason) == ([], "HOROVOD_CYCLE_TIME is already set to 5")
    assert listed["fusion_threshold"].values


def test_a_list_of_variables_set_by_the_user_fixes_only_its_members() -> None:
    given = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}
    assert choices_by_knob(profile_of(), given=given)["huge_pages"].values == ["off", "on"]
    given["GLIBC_TUNABLES"] += ":glibc.malloc.hugetlb=1"
    found = choices_by_knob(profile_of(), given=given)["huge_pages"]
    assert (found.values, found.reason) == ([], f"GLIBC_TUNABLES is already set to {given['GLIBC_TUNABLES']}")


jobs = st.sampled_from(sorted(FLAVOURS)).flatmap(
    lambda flavour: st.tuples(st.just(flavour), st.sampled_from(FLAVOURS[flavour][1]))
)
sizes = st.sampled_from([8, 64 * KIB, 2 * MIB, 256 * MIB])
messages = st.dictionaries(
    st.sampled_from(["allreduce", "broadcast", "allgather"]),
    st.builds(OperationMessages, st.integers(1, 10**6), sizes, st.floats(0, 1)),
)


@given(
    job=jobs,
    nodes=st.integers(1, 4),
    ranks=st.integers(1, 8),
    cores=st.integers(1, 64),
    gpus=st.integers(0, 2),
    horovod=st.booleans(),
    source=st.sampled_from(["hvprof", "nccl", "horovod-timeline"]),
    messages_by_operation=messages,
    seed=st.integers(0, 99),
)
def test_every_point_of_every_space_is_valid(
    job: tuple[str, str],
    nodes: int,
    ranks: int,
    cores: int,
    gpus: int,
    horovod: bool,
    source: str,
    messages_by_operation: dict[str, OperationMessages],
    seed: int,
) -> None:
    flavour, transport = job
    facts = profile_of(
        **{"np": nodes * ranks, "nodes": nodes, "ranks_per_node": ranks, "cores": cores, "gpus": gpus},
        **{
            "flavour": flavour,
            "transport": transport,
            "source": source,
            "horovod": horovod,
            "messages": messages_by_operation,
        },
    )
    here = target(flavour, transport)
    listed = choices_by_knob(facts, here)
    for choice in listed.values():
        assert (len(set(choice.values)) == len(choice.values) >= 2) or (choice.values == [] and choice.reason)
    space = space_of(list(listed.values()), here)
    assert space.choose(_FixedChooser(space.parameters({}))) == {}
    for _ in range(5):
        settings = space.random(random.Random(seed))  # noqa: S311
        assert space.contains(settings)
        assert space.choose(_FixedChooser(space.parameters(settings))) == settings
        translate([Setting(knob, value) for knob, value in settings.items()], here)
        if "segment_size" in settings:
            algorithms = {settings.get("allreduce_algorithm"), settings.get("broadcast_algorithm")}
            assert algorithms & WITH_SEGMENTS
        assert not {"hvscale_broadcast", "broadcast_algorithm"} <= settings.keys()
        seed += 1


class _FixedChooser:
    """Chooses the given parameters."""

    def __init__(self, parameters: dict[str, int | str]) -> None:
        self.parameters = parameters

    def index_of(self, knob: str, count: int) -> int:
        chosen = self.parameters[knob]
        assert isinstance(chosen, int)
        assert 0 <= chosen < count
        return chosen

    def value_of(self, knob: str, values: tuple[str, ...]) -> str:
        chosen = self.parameters[knob]
        assert chosen in values
        return str(chosen)
