"""Where a job runs, as the user asks for it. The text of each field is the help of its option on
the command line.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hvscale.core.numbers import Ranks
from hvscale.launch import placements


def option(metavar: str, text: str, *flags: str) -> Any:
    """A field that is an option of the command line.

    `metavar` names its value there (empty for a switch), and `text` is its help. `flags` are its
    spellings, by default the field's name with dashes.
    """
    return Field(description=text, json_schema_extra={"metavar": metavar, "flags": list(flags)})


class PlacementOptions(BaseModel):
    """None means: not asked for, the placement's own default holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    placement: Annotated[
        str | None,
        option("PLACEMENT", "Where the ranks run."),
    ] = None
    ranks_per_container: Annotated[
        Ranks | None, option("K", "docker:node: how many ranks share a container. [default: 2]")
    ] = None
    nodes: Annotated[
        Ranks | None,
        option(
            "N",
            "netns: how many network namespaces share the ranks. [default: 2] slurm: how many nodes a job asks for.",
        ),
    ] = None
    link: Annotated[
        str | None,
        option("RATE", "docker, netns: hold what each node sends to this rate, for example 1gbit or 200mbit."),
    ] = None
    network: Annotated[
        Literal["bridge", "overlay"] | None,
        option("bridge|overlay", "docker: a private bridge, or an overlay network of Docker Swarm. [default: bridge]"),
    ] = None
    shm_size: Annotated[
        str | None, option("SIZE", "docker: the size of /dev/shm in each container, for example 512m. [default: 1g]")
    ] = None
    cma: Annotated[
        bool | None,
        option(
            "",
            "docker: let ranks of one container read each other's memory, as MPI does for large messages "
            "(adds SYS_PTRACE to the container). [default: no-cma, as Docker has it]",
            "--cma/--no-cma",
        ),
    ] = None
    container_gpus: Annotated[
        Literal["all", "own", "none"] | None,
        option(
            "all|own|none",
            "docker: the GPUs that a container sees: all, one for each of its ranks, or none. [default: all there are]",
        ),
    ] = None
    image: Annotated[
        str | None,
        option("IMAGE", "docker: the image; `hvscale image build` makes the default. [default: hvscale:base]"),
    ] = None
    mount: Annotated[
        tuple[Path, ...] | None,
        option("DIR", "docker: one more folder that the ranks may read, such as a data set; can be given again."),
    ] = None

    hosts: Annotated[
        str | None,
        option("LIST", "ssh: the hosts with their slots, such as a:4,b:4; stands for --placement ssh."),
    ] = None
    hostfile: Annotated[
        Path | None,
        option("FILE", "ssh: a file with a line for each host, `a:4` or `a slots=4`; stands for --placement ssh."),
    ] = None

    sbatch: Annotated[
        Path | None,
        option("FILE", "slurm: write the script of a job that does this; with no --submit, do nothing else."),
    ] = None
    submit: Annotated[bool | None, option("", "slurm: submit it as a job and follow that to its end.")] = None
    sbatch_option: Annotated[
        tuple[str, ...] | None,
        option("OPTION", "slurm: an option of sbatch for the job, such as --time=1:00:00; can be given again."),
    ] = None

    @property
    def name(self) -> str:
        """The placement asked for, or the one that the other options stand for."""
        if self.placement is not None:
            return self.placement
        known = placements.PLACEMENTS.all().items()
        implied = (name for name, place in known if any(getattr(self, option) for option in place.implied_by))
        return next(implied, placements.DEFAULT_PLACEMENT)

    def given(self) -> set[str]:
        """The options that were asked for, beside the placement itself."""
        return {name for name in type(self).model_fields if getattr(self, name) is not None} - {"placement"}
