"""Where a job runs, as the user asks for it. Each field's text is the help of its option."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hvscale.core.numbers import Ranks
from hvscale.launch import placements


def option(metavar: str, text: str | Callable[[], str], *flags: str) -> Any:
    """A field that is an option of the command line.

    `metavar` names its value there (empty for a switch). `text` is its help, or a function that
    returns it: only --help then loads every placement. `flags` are its spellings, by default the
    field's name with dashes.
    """
    extra: dict[str, Any] = {"metavar": metavar, "flags": list(flags)}
    if isinstance(text, str):
        return Field(description=text, json_schema_extra=extra)
    extra["help"] = text
    return Field(json_schema_extra=extra)


class PlacementOptions(BaseModel):
    """None means not given: the placement's own default applies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    placement: Annotated[
        str | None,
        option("PLACEMENT", placements.placement_help),
    ] = None
    ranks_per_container: Annotated[
        Ranks | None, option("K", "Start this many ranks per container (docker:node only). [default: 2]")
    ] = None
    nodes: Annotated[
        Ranks | None,
        option(
            "N",
            "Start the ranks in this many network namespaces (netns), or on this many nodes (slurm). [default: 2 with "
            "netns]",
        ),
    ] = None
    link: Annotated[
        str | None,
        option("RATE", "Limit each node's sending rate, such as 1gbit or 200mbit (docker and netns only)."),
    ] = None
    network: Annotated[
        Literal["bridge", "overlay"] | None,
        option(
            "bridge|overlay",
            "Connect containers by a private bridge or an overlay network of Docker Swarm (docker only). [default: "
            "bridge]",
        ),
    ] = None
    shm_size: Annotated[
        str | None,
        option("SIZE", "Set the size of /dev/shm in each container, such as 512m (docker only). [default: 1g]"),
    ] = None
    cma: Annotated[
        bool | None,
        option(
            "",
            "Let the ranks of a container read each other's memory, which MPI uses for large messages (docker only; "
            "adds SYS_PTRACE). [default: no-cma, Docker's own default]",
            "--cma/--no-cma",
        ),
    ] = None
    container_gpus: Annotated[
        Literal["all", "own", "none"] | None,
        option(
            "all|own|none",
            "Give each container all GPUs, one for each of its ranks (own), or none (docker only). [default: all]",
        ),
    ] = None
    image: Annotated[
        str | None,
        option(
            "IMAGE",
            "Start containers from this image (docker only); `hvscale image build` builds the default one. [default: hvscale:base]",
        ),
    ] = None
    mount: Annotated[
        tuple[Path, ...] | None,
        option("DIR", "Mount this folder read-only, such as a data set (docker only); repeatable."),
    ] = None

    hosts: Annotated[
        str | None,
        option("LIST", "Start the ranks on these hosts with their slots, such as a:4,b:4; implies --placement ssh."),
    ] = None
    hostfile: Annotated[
        Path | None,
        option("FILE", "Read the hosts from this file, one per line: `a:4` or `a slots=4`; implies --placement ssh."),
    ] = None

    sbatch: Annotated[
        Path | None,
        option("FILE", "Write the Slurm job script to this file; nothing starts without --submit."),
    ] = None
    submit: Annotated[bool | None, option("", "Submit the command as a Slurm job and wait for its end.")] = None
    sbatch_option: Annotated[
        tuple[str, ...] | None,
        option("OPTION", "Pass this option to sbatch, such as --time=1:00:00; repeatable (slurm only)."),
    ] = None

    @property
    def name(self) -> str:
        """The placement given, or the one that the other options imply."""
        if self.placement is not None:
            return self.placement
        if not self.given():
            return placements.DEFAULT_PLACEMENT
        known = placements.PLACEMENTS.all().items()
        implied = (name for name, place in known if any(getattr(self, option) for option in place.implied_by))
        return next(implied, placements.DEFAULT_PLACEMENT)

    def given(self) -> set[str]:
        """The options that were given, except the placement itself."""
        return {name for name in type(self).model_fields if getattr(self, name) is not None} - {"placement"}
