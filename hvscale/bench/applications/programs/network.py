"""The network: ping times, and the bandwidth between pairs of ranks that all send at once."""

from typing import ClassVar

from pydantic import BaseModel

from hvscale.bench.applications import Application, ApplicationParameter, ProgramResult, Sizes, register

BYTES_PER_RANK = 16 << 20


class Ping(BaseModel):
    """Round-trip seconds of one byte, over all pings between rank 0 and every other rank."""

    min: float
    median: float
    max: float


class PairBandwidth(BaseModel):
    """The bandwidth of each pair for messages of one size, while all pairs send."""

    bytes: int
    bytes_per_second: list[float]


class NetworkResult(ProgramResult):
    ping_seconds: Ping
    bandwidth: list[PairBandwidth]


class Network(Application):
    name = "network"
    summary = "the network: ping times, and the bandwidth between pairs that all send at once, 16 B to 1 MiB; np even"
    sources = ("network.c",)
    parameters: ClassVar = {
        "pings": ApplicationParameter("of one byte to each rank", 1000, 10**4),
        "rounds": ApplicationParameter("of 16 messages of each size", 100, 1000),
    }
    result = NetworkResult
    base_np = 2
    default_np = (2,)
    is_timed = False

    def unsupported_reason(self, np: int, sizes: Sizes) -> str | None:
        return "ranks send in pairs: np must be even" if np % 2 else None

    def memory(self, np: int, sizes: Sizes) -> tuple[int, str]:
        return BYTES_PER_RANK * np + 8 * sizes["pings"] * np, f"{BYTES_PER_RANK >> 20} MiB per rank, 8 bytes per ping"


register(Network())
