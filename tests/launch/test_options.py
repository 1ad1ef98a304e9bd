"""The options of a launch have the same names on command lines, in job scripts and in documents."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from hvscale.bench.applications.document import ApplicationDocument
from hvscale.bench.collectives.document import BenchDocument
from hvscale.bench.param_server.document import ParamServerDocument
from hvscale.cli.commands import profile as profile_file
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument
from hvscale.comm_tuning.tune.document import TuneDocument
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunRecord
from hvscale.launch import flavours
from hvscale.launch.environment import has_public_value
from hvscale.launch.options import OPTIONS, LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import _slurm_job
from hvscale.studies.comparison.study import ComparisonDocument
from hvscale.studies.scaling.document import ScalingDocument

PROFILE: Any = get_command(profile_file.app)  # it has all options of a launch
DOCUMENTS = (
    ApplicationDocument,
    BenchDocument,
    ComparisonDocument,
    ScalingDocument,
    ParamServerDocument,
    TuneCollectivesDocument,
    TuneDocument,
)

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
paths = st.builds(Path, texts.filter(lambda text: text.strip("./")))
variables = st.sampled_from(["HOROVOD_CYCLE_TIME", "OMPI_MCA_btl", "WANDB_API_KEY", "FOO"])
requests = st.lists(st.builds("{}={}".format, variables, texts), unique_by=lambda one: one.partition("=")[0])
placements = st.builds(
    PlacementOptions,
    placement=st.none() | texts,
    ranks_per_container=st.none() | st.integers(1, 1_000_000),
    link=st.none() | texts,
    network=st.sampled_from([None, "bridge", "overlay"]),
    cma=st.none() | st.booleans(),
    mount=st.none() | st.lists(paths, min_size=1).map(tuple),
    hostfile=st.none() | paths,
    submit=st.none() | st.just(True),
)
options = st.builds(
    LaunchOptions,
    np=st.integers(1, 1_000_000),
    mpi=st.sampled_from(flavours.names()),
    transport=st.none() | texts,
    devices=texts,
    env=requests.map(tuple),
    set=st.lists(texts).map(tuple),
    settings=st.none() | paths,
    collectives=st.none() | paths,
    record=st.sampled_from([None, "calls", "counters"]),
    record_dir=st.none() | paths,
    run=st.none() | paths,
    placement=placements,
    start_timeout=st.none() | st.floats(0.001, 1e9),
)


def parse_arguments(words: list[str]) -> tuple[LaunchOptions, list[str]]:
    """The options and the command that `hvscale profile` parses from its arguments."""
    context = PROFILE.make_context("profile", list(words))
    command = list(context.params["command"])
    return LaunchOptions.of(**PROFILE.take_values(context)), command


@given(options)
def test_options_round_trip_through_json(original: LaunchOptions) -> None:
    for one in (original, original.recorded()):
        assert LaunchOptions.model_validate_json(one.model_dump_json()) == one


@given(options)
def test_options_round_trip_through_a_command_line(original: LaunchOptions) -> None:
    words = [word for part in original.command_line() for word in part]
    assert parse_arguments([*words, "--", "true"]) == (original, ["true"])


@given(options, st.lists(texts, min_size=1))
def test_options_round_trip_through_a_job_script(original: LaunchOptions, command: list[str]) -> None:
    script = _slurm_job.job_script("profile", command, original, Path("/runs/job"))
    _, verb, *words = shlex.split(script.rpartition("\nexec ")[2])
    env = tuple(one if has_public_value(one.partition("=")[0]) else one.partition("=")[0] for one in original.env)
    inside = original.replace(env=env, run=Path("/runs/job"), placement=PlacementOptions(placement="slurm"))
    assert (verb, *parse_arguments(words)) == ("profile", inside, command)


def test_each_option_has_one_name() -> None:
    """The key in a document is the option without its dashes."""
    given = {option.name: option for option in PROFILE.params if option.name in OPTIONS}
    assert list(given) == list(OPTIONS)
    for name, option in given.items():
        assert "--" + name.replace("_", "-") in option.opts
    everything = LaunchOptions.of(**{name: example(name) for name in OPTIONS})
    assert list(everything.model_dump()) == list(OPTIONS)


def example(name: str) -> object:
    kinds = {
        "np": 2,
        "cma": True,
        "submit": True,
        "network": "bridge",
        "container_gpus": "own",
        "start_timeout": 1.5,
        "record": "calls",
    }
    lists = ("env", "set", "mount", "sbatch_option")
    return [f"{name}=1"] if name in lists else kinds.get(name, 2 if name in ("nodes", "ranks_per_container") else name)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_options_in_a_study_s_document_are_under_the_key_launch(document: Any) -> None:
    fields = document.model_fields
    assert fields["launch"].annotation in (LaunchOptions, dict[str, LaunchOptions])
    assert not {"settings", "env", "environment", "transport_name", "knobs"} & fields.keys()


def test_the_options_in_run_json_are_under_the_key_launch() -> None:
    fields = RunRecord.model_fields
    assert "launch" in fields
    assert not {"settings", "env", "settings_asked", "knobs"} & fields.keys()


def test_documents_contain_no_secrets_and_no_run_folder() -> None:
    requested = LaunchOptions(np=2, env=("PGPASS=s3cret", "NCCL_DEBUG=INFO"), run=Path("job"))
    assert requested.recorded().model_dump() == {"np": 2, "env": ["PGPASS", "NCCL_DEBUG=INFO"]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"np": 0}, "--np 0: "),
        ({"ranks_per_container": 0}, "--ranks-per-container 0: "),
        ({"network": "moon"}, "--network moon: "),
        ({"transport_name": "ucx"}, "--transport-name ucx: "),
    ],
)
def test_an_invalid_value_is_a_one_line_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as error:
        LaunchOptions.of(**values)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_replacing_an_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="transport_name"):
        LaunchOptions().replace(transport_name="ucx")
