"""`hvscale --help`, and the error for an unknown command."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from hvscale.cli.main import PANELS, app
from hvscale.cli.model_options import ModelCommand
from tests.conftest import Run

# First words of texts that say what an option is, or when it applies, not what it does.
NO_VERB = re.compile(
    "(A|An|The|This|These|What|Where|Whether|How|When|If|With|Without|In|On|For|Only|Also|Columns|Cores|Element|File|"
    "Folder|Largest|Library|Libraries|Maximum|Memory|Minimum|Name|Number|Numbers|Operations|Rank|Ranks|Rate|Regular|"
    "Root|Run folder|Scale factors|Scaling|Seconds|Size|Smallest|Step|Steps|Transport|Width)\\b"
)


def option_help(command: Any, context: Any, path: str) -> Iterator[tuple[str, str]]:
    """The name and shown help of each option of a command and of its sub-commands."""
    if isinstance(command, ModelCommand):
        command.complete_help()
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            _, text = param.get_help_record(context)  # with the default that Typer adds
            yield f"{path} {max(param.opts, key=len)}", " ".join(text.removesuffix("[required]").split())
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from option_help(command.get_command(context, name), context, f"{path} {name}")


def help_text_problem(text: str) -> str | None:
    """What is wrong with the form of an option's help text."""
    if not re.match("[A-Z][a-z]+ ", text) or NO_VERB.match(text):
        return "it does not start with a verb"
    without_default = re.sub(r"\s\[default: [^][]+\]$", "", text)
    if re.search(r"default: |\[default|\(default|default is", without_default, re.IGNORECASE):
        return "its default is not written [default: X] at the end"
    return None


def test_help_texts_of_options_start_with_a_verb_and_end_with_the_default() -> None:
    root: Any = get_command(app)
    context = root.make_context("hvscale", [], resilient_parsing=True)
    texts = dict(option_help(root, context, "hvscale"))
    assert len(texts) > 500
    assert {name: text for name, text in texts.items() if help_text_problem(text) is not None} == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Number of ranks.",
        "docker:node: ranks per container. [default: 2]",
        "With --predict-np: steps of each replay. [default: 30]",
        "Ranks on each node. Default: as measured.",
        "Replay this many steps. Default: as many as were recorded.",
        "Set the number of residual blocks; default: the model's own.",
        "Set the number of classes; default: 1000. Other data determines it.",
        "Set the number of classes. [default: 1000] Other data determines it.",
        "Set the number of classes. [default: 1000] [default: 1000]",
    ],
)
def test_the_check_of_help_texts_finds_other_forms(text: str) -> None:
    assert help_text_problem(text) is not None


def test_help_groups_the_commands(hvscale: Run) -> None:
    text = hvscale("--help", COLUMNS="80").stdout
    places = [text.index(f" {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    ends = [*places[1:], len(text)]
    for (panel, commands), begin, end in zip(PANELS.items(), places, ends, strict=True):
        shown = re.findall(r"^│ ([a-z-]+)", text[begin:end], re.MULTILINE)
        assert shown == list(commands), panel


@pytest.mark.parametrize("command", ["train", "launch", "bench allreduce"])
def test_a_narrow_help_has_whole_names_of_options(hvscale: Run, command: str) -> None:
    narrow, wide = (hvscale(*command.split(), "--help", COLUMNS=width).stdout for width in ("80", "250"))
    assert max(map(len, narrow.splitlines())) <= 80
    names, expected = ({*re.findall(r"(?<= )--[a-z-]+(?=[ ,])", text)} for text in (narrow, wide))
    assert len(expected) > 20
    assert expected <= names
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow
    usage_and_arguments = narrow.partition("─ Options")[0]
    assert not re.search(r"[{<]|\[\[", usage_and_arguments), usage_and_arguments


def test_an_unknown_command_suggests_the_nearest(hvscale: Run) -> None:
    for wrong, right in (("lunch", "launch"), ("tune-colectives", "tune-collectives"), ("breakdwon", "breakdown")):
        done = hvscale(wrong)
        assert done.returncode == 2
        assert f"'{right}'" in done.stderr
        assert done.stderr.count("\n") == 1
