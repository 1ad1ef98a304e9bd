"""Networks known from documents: what an all-reduce costs there, by start-up time and bandwidth."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hvscale.core.errors import RequestError
from hvscale.core.files import read_text
from hvscale.core.numbers import Ranks
from hvscale.core.suggest import suggest_name
from hvscale.prediction.model.costs import Burst, Floats

FILE_BYTES = 1 << 20  # largest network file
AGREEMENT_BYTES = 64  # a bit for each of 500 tensors
# What real links do of what documents say; NCCL's own model has a factor of 1.9 for large messages.
SLOWEST_LINK, LONGEST_START_UP = 0.5, 2.0

AlgorithmKind = Literal["ring", "tree", "recursive-doubling", "reduce-scatter-all-gather", "hierarchical"]
StartUp = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1, le=1e15, allow_inf_nan=False)]


class Sourced(BaseModel):
    """A table of the file; `source` says, by the name of a figure, where it comes from."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    source: dict[str, str] = {}

    @model_validator(mode="after")
    def _sources_name_figures(self) -> Self:
        for name in self.source:
            if name == "source" or name not in type(self).model_fields:
                raise ValueError(f"source: {suggest_name('figure', name, figure_names(type(self)))}")
        return self

    def without_source(self) -> list[str]:
        """Return the figures that are set and have no source."""
        return [name for name in figure_names(type(self)) if name in self.model_fields_set and name not in self.source]


class NetworkLevel(Sourced):
    """Links of one kind: within a node, or from node to node."""

    alpha_seconds: StartUp
    """Start-up time of one message: what a message without bytes takes."""
    bytes_per_second: Rate
    """Bandwidth in one direction: of a rank within a node, of the whole node between nodes."""
    agreement_alpha_seconds: StartUp | None = None
    """Start-up time of the small messages by which ranks agree; `alpha_seconds` if absent."""

    @property
    def process_alpha(self) -> float:
        return self.alpha_seconds if self.agreement_alpha_seconds is None else self.agreement_alpha_seconds


class DocumentedAlgorithm(Sourced):
    """An all-reduce algorithm that the library has; the fastest is taken for each size."""

    kind: AlgorithmKind
    within_node_alpha_seconds: StartUp | None = None
    """The start-up time of this algorithm's messages within a node, if it is another one."""
    between_nodes_alpha_seconds: StartUp | None = None
    """The start-up time of this algorithm's messages between nodes, if it is another one."""
    call_seconds: StartUp = 0.0
    """Time of a call that depends neither on bytes nor on ranks, such as starting a kernel."""
    bandwidth_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Share of the bandwidths that this algorithm reaches."""


class NetworkFile(Sourced):
    """A network, with the library that uses it."""

    description: Annotated[str, Field(min_length=1, max_length=200)]
    ranks_per_node: Ranks
    blocking: bool
    """True for MPI and Gloo, which block Horovod's thread during a message; false for NCCL."""
    copy_bytes_per_second: Rate | None = None
    """Copies into or out of Horovod's fusion buffer; free if absent."""
    reduce_bytes_per_second: Rate | None = None
    """Adding two buffers, per byte of the result; free (done while bytes arrive) if absent."""
    within_node: NetworkLevel
    between_nodes: NetworkLevel
    algorithm: Annotated[list[DocumentedAlgorithm], Field(min_length=1)]

    def without_source(self) -> list[str]:
        """Return the figures that have no source, as `between_nodes.alpha_seconds`."""
        tables: dict[str, Sourced] = {"within_node": self.within_node, "between_nodes": self.between_nodes}
        tables |= {f"algorithm.{number}": one for number, one in enumerate(self.algorithm)}
        within = [f"{table}.{name}" for table, found in tables.items() for name in found.without_source()]
        return [*super().without_source(), *within]


NOT_FIGURES = ("source", "description", "kind", "blocking", "within_node", "between_nodes", "algorithm")


def figure_names(model: type[BaseModel]) -> list[str]:
    return [name for name in model.model_fields if name not in NOT_FIGURES]


@dataclass(frozen=True)
class DocumentedCosts:
    """The costs of a documented network: satisfies `Costs`.

    Ranks fill one node after the other, `ranks_per_node` on each. `bandwidth` and `start_up`
    multiply the documented figures; arrays hold one factor for each simulated job.
    """

    name: str
    network: NetworkFile
    ranks_per_node: int
    bandwidth: Floats | float = 1.0
    start_up: Floats | float = 1.0
    largest_np: int = 0
    burst: Burst | None = None

    @property
    def blocking(self) -> bool:
        return self.network.blocking

    @property
    def description(self) -> str:
        return f"documented, not measured: {self.name}"

    def message_seconds(self, bytes: Floats, np: int, burst: Floats | float = 0.0) -> Floats:
        """All-reduces of so many bytes, of any shape, each by its fastest algorithm."""
        sizes = numpy.asarray(bytes, float)
        if np == 1:
            return numpy.zeros_like(sizes)
        layout = Layout.of(np, self.ranks_per_node)
        lines = [self._line(algorithm, layout) for algorithm in self.network.algorithm]
        fastest: Floats = numpy.minimum.reduce(
            [alpha * self.start_up + sizes * per_byte / self.bandwidth for alpha, per_byte in lines]
        )
        return fastest

    def sent_bytes(self, bytes: Floats, np: int) -> Floats:
        """The bytes that a node sends over its link, by a ring."""
        layout = Layout.of(np, self.ranks_per_node)
        share = 2 * (np - 1) / np if layout.nodes > 1 else 0.0
        sent: Floats = share * numpy.asarray(bytes, float)
        return sent

    def agreement_seconds(self, np: int) -> float:
        """Recursive doubling of a few bytes between processes."""
        layout = Layout.of(np, self.ranks_per_node)
        within, between = self.network.within_node, self.network.between_nodes
        alpha = rounds(layout.local) * within.process_alpha + rounds(layout.nodes) * between.process_alpha
        per_byte = rounds(layout.local) / within.bytes_per_second
        per_byte += rounds(layout.nodes) * layout.local / between.bytes_per_second
        return float(alpha * numpy.mean(self.start_up) + AGREEMENT_BYTES * per_byte / numpy.mean(self.bandwidth))

    def enqueue_seconds(self, np: int) -> float:
        return 0.0  # each rank has a core

    def copy_seconds(self, bytes: Floats, np: int) -> Floats:
        """Both copies: into the fusion buffer and out of it."""
        rate = self.network.copy_bytes_per_second
        sizes = numpy.asarray(bytes, float)
        return numpy.zeros_like(sizes) if rate is None else 2 * sizes / rate

    def scaled(self, bandwidth: float = 1.0, start_up: float = 1.0) -> "DocumentedCosts":
        """Multiply all bandwidths, and all start-up times."""
        return replace(self, bandwidth=self.bandwidth * bandwidth, start_up=self.start_up * start_up)

    def perturbed(self, jobs: int, seed: int = 0) -> "DocumentedCosts":
        """Draw a bandwidth and start-up times for each of `jobs` simulated jobs.

        Documents give what hardware can do. Bandwidths are drawn from `SLOWEST_LINK` to 1 times the
        documented ones, start-up times from 1 to `LONGEST_START_UP` times, both uniformly: assumed.
        """
        generator = numpy.random.default_rng(seed)
        return replace(
            self,
            bandwidth=self.bandwidth * generator.uniform(SLOWEST_LINK, 1, jobs),
            start_up=self.start_up * generator.uniform(1, LONGEST_START_UP, jobs),
        )

    def _line(self, algorithm: DocumentedAlgorithm, layout: "Layout") -> "Line":
        network, share = self.network, algorithm.bandwidth_share
        within, between = algorithm.within_node_alpha_seconds, algorithm.between_nodes_alpha_seconds
        links = Links(
            within_alpha=network.within_node.alpha_seconds if within is None else within,
            between_alpha=network.between_nodes.alpha_seconds if between is None else between,
            within_per_byte=1 / (share * network.within_node.bytes_per_second),
            between_per_byte=1 / (share * network.between_nodes.bytes_per_second),
            reduce_per_byte=1 / network.reduce_bytes_per_second if network.reduce_bytes_per_second else 0.0,
        )
        alpha, per_byte = LINES[algorithm.kind](links, layout)
        return algorithm.call_seconds + alpha, per_byte


@dataclass(frozen=True)
class Layout:
    """np ranks on nodes: `local` on each."""

    np: int
    local: int
    nodes: int

    @classmethod
    def of(cls, np: int, ranks_per_node: int) -> "Layout":
        local = min(np, ranks_per_node)
        return cls(np, local, -(-np // local))


@dataclass(frozen=True)
class Links:
    within_alpha: float
    between_alpha: float
    within_per_byte: float
    between_per_byte: float
    """Of a whole node: all its ranks share it."""
    reduce_per_byte: float

    def slowest(self, layout: Layout) -> float:
        """Seconds a byte of the slowest link in a ring or tree over all ranks."""
        within = self.within_per_byte if layout.local > 1 else 0.0
        return max(within, self.between_per_byte if layout.nodes > 1 else 0.0)


Line = tuple[float, float]  # the seconds of a call, and of each byte


def rounds(count: int) -> int:
    """Rounds of recursive doubling: two more for a count that is not a power of two."""
    whole = count.bit_length() - 1
    return whole if count == 1 << whole else whole + 2


def ring(links: Links, layout: Layout) -> Line:
    """2 (np - 1) messages, each of 1/np of the bytes; the slowest link sets the pace.

    Start-up times add up along the ring, as in NCCL's model (src/graph/tuning.cc). One link of the
    ring leaves a node, whatever the node's number of ranks.
    """
    between = 2 * (layout.nodes - 1)
    within = 2 * (layout.np - 1) - between
    share = (layout.np - 1) / layout.np
    per_byte = share * (2 * links.slowest(layout) + links.reduce_per_byte)
    return within * links.within_alpha + between * links.between_alpha, per_byte


def tree(links: Links, layout: Layout) -> Line:
    """NCCL's double binary tree over the nodes, with a chain in each node, in pipelined pieces."""
    depth = (layout.nodes - 1).bit_length()
    alpha = 2 * ((layout.local - 1) * links.within_alpha + depth * links.between_alpha)
    return alpha, 2 * links.slowest(layout) + links.reduce_per_byte


def recursive_doubling(links: Links, layout: Layout) -> Line:
    """All bytes in each round; the ranks of a node share its link."""
    within, between = rounds(layout.local), rounds(layout.nodes)
    per_byte = within * links.within_per_byte + between * layout.local * links.between_per_byte
    per_byte += (within + between) * links.reduce_per_byte
    return within * links.within_alpha + between * links.between_alpha, per_byte


def reduce_scatter_all_gather(links: Links, layout: Layout) -> Line:
    """Halving, then doubling (Rabenseifner; Thakur et al., 2005), nearest ranks first.

    The large halves stay in the node. Each rank then sends its part of the bytes to other nodes.
    """
    alpha, per_byte = halving_doubling(layout.local, links.within_alpha, links.within_per_byte, links.reduce_per_byte)
    return plus_between_nodes(alpha, per_byte, links, layout)


def hierarchical(links: Links, layout: Layout) -> Line:
    """A ring in each node; then halving and doubling between nodes, by all ranks at once."""
    share = (layout.local - 1) / layout.local
    alpha = 2 * (layout.local - 1) * links.within_alpha
    return plus_between_nodes(alpha, share * (2 * links.within_per_byte + links.reduce_per_byte), links, layout)


def plus_between_nodes(alpha: float, per_byte: float, links: Links, layout: Layout) -> Line:
    reduce_per_byte = links.reduce_per_byte / layout.local
    more_alpha, more = halving_doubling(layout.nodes, links.between_alpha, links.between_per_byte, reduce_per_byte)
    return alpha + more_alpha, per_byte + more


def halving_doubling(count: int, alpha: float, per_byte: float, reduce_per_byte: float) -> Line:
    """Ranks above a power of two send all bytes first and receive all at the end."""
    whole = 1 << (count.bit_length() - 1)
    extra = 0 if count == whole else 1
    messages = 2 * (whole.bit_length() - 1 + extra)
    return messages * alpha, ((whole - 1) / whole + extra) * (2 * per_byte + reduce_per_byte)


LINES: dict[AlgorithmKind, Callable[[Links, Layout], Line]] = {
    "ring": ring,
    "tree": tree,
    "recursive-doubling": recursive_doubling,
    "reduce-scatter-all-gather": reduce_scatter_all_gather,
    "hierarchical": hierarchical,
}

SHIPPED: Traversable = files("hvscale.prediction") / "networks"


def network_names() -> list[str]:
    """The documented networks: the files of hvscale/prediction/networks, without their endings."""
    return sorted(file.name.removesuffix(".toml") for file in SHIPPED.iterdir() if file.name.endswith(".toml"))


def load_network(name_or_path: str, ranks_per_node: int | None = None) -> DocumentedCosts:
    """The costs of a documented network or of a network file; `ranks_per_node` replaces the file's.

    Raises RequestError for an unknown name, suggesting the nearest, and for an invalid file, naming
    the field.
    """
    network, name = read_network(name_or_path)
    return DocumentedCosts(name, network, network.ranks_per_node if ranks_per_node is None else ranks_per_node)


def read_network(name_or_path: str) -> tuple[NetworkFile, str]:
    """The network and its name. Raises RequestError as `load_network` does."""
    if name_or_path in network_names():
        return parse_network(SHIPPED.joinpath(f"{name_or_path}.toml").read_text(), name_or_path), name_or_path
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.exists():
        known = suggest_name("network", name_or_path, network_names())
        raise RequestError(f"--network {name_or_path}: {known}, or a TOML file that describes yours")
    try:
        text = read_text(path, FILE_BYTES)
    except OSError as error:
        raise RequestError(f"--network {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"--network {path} is not text in UTF-8: {error.reason}") from error
    return parse_network(text, name_or_path), path.name


def parse_network(text: str, name: str) -> NetworkFile:
    """The network in a TOML text. Raises RequestError, naming file and field, if it is invalid."""
    try:
        return NetworkFile.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise RequestError(f"--network {name}: {first_problem(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"--network {name} is not valid TOML: {error}") from error


TABLES: dict[str, type[BaseModel]] = {
    "within_node": NetworkLevel,
    "between_nodes": NetworkLevel,
    "algorithm": DocumentedAlgorithm,
}


def first_problem(error: ValidationError) -> str:
    """The first error in one line with its field; unknown fields come first."""
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        table = TABLES.get(str(first["loc"][0]), NetworkFile) if len(first["loc"]) > 1 else NetworkFile
        return f"{place}: {suggest_name('field', str(first['loc'][-1]), table.model_fields)}"
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"
