"""How fast a node's network link is made: the words that Linux's `tc` wants."""

import re

from hvscale.core.errors import RequestError

SLOWEST, FASTEST = 1e3, 1e13  # bits per second
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SMALLEST_BURST_BYTES = 256 * 1024
BURST_SECONDS = 250e-6  # below the smallest burst up to 8 Gbit/s; above, one timer tick must not starve the link
LONGEST_QUEUE = "50ms"


def bits_per_second(rate: str) -> float:
    """Raises RequestError for what is not a rate such as 1gbit or 200mbit."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([kmg]bit)", rate.lower())
    bits = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not SLOWEST <= bits <= FASTEST:
        raise RequestError(f"--link {rate}: not a rate from 1kbit to 10000gbit; write it as 1gbit, 200mbit or 512kbit")
    return bits


def shaping_command(interface: str, rate: str) -> list[str]:
    """The `tc` command that holds what leaves through `interface` to `rate`: a token bucket,
    because netem is not in every kernel.
    """
    bits = bits_per_second(rate)
    burst = max(SMALLEST_BURST_BYTES, int(bits / 8 * BURST_SECONDS))
    return [
        *("tc", "qdisc", "replace", "dev", interface, "root", "tbf"),
        *("rate", f"{bits:.0f}bit", "burst", f"{burst}b", "latency", LONGEST_QUEUE),
    ]
