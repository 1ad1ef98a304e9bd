"""Limits the rate of a node's network link with Linux's `tc`."""

import re

from hvscale.core.errors import RequestError

SLOWEST, FASTEST = 1e3, 1e13  # bits per second
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SMALLEST_BURST_BYTES = 256 * 1024
BURST_SECONDS = 250e-6  # applies above 8 Gbit/s: the burst must cover one timer tick
LONGEST_QUEUE = "50ms"


def bits_per_second(rate: str) -> float:
    """The rate in bit/s. Raises RequestError if it is not a rate such as 1gbit or 200mbit."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([kmg]bit)", rate.lower())
    bits = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not SLOWEST <= bits <= FASTEST:
        raise RequestError(f"--link {rate}: not a rate from 1kbit to 10000gbit; write it as 1gbit, 200mbit or 512kbit")
    return bits


def burst_bytes(bytes_per_second: float) -> int:
    """How much may pass at once after a link of this rate has rested."""
    return max(SMALLEST_BURST_BYTES, int(bytes_per_second * BURST_SECONDS))


def shaping_command(interface: str, rate: str) -> list[str]:
    """The `tc` command that limits what leaves through `interface` to `rate`.

    It uses a token bucket, because not every kernel has netem.
    """
    bits = bits_per_second(rate)
    burst = burst_bytes(bits / 8)
    return [
        *("tc", "qdisc", "replace", "dev", interface, "root", "tbf"),
        *("rate", f"{bits:.0f}bit", "burst", f"{burst}b", "latency", LONGEST_QUEUE),
    ]
