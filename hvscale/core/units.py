"""Sizes and times as people read them, with three digits."""

KIB, MIB, GIB = 2**10, 2**20, 2**30


def human_bytes(size: float) -> str:
    """As a table shows it, with three digits: 128 KiB, 1.5 GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{_three_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def human_seconds(seconds: float) -> str:
    """As a table shows it, with three digits: 12.3 ms, 4.56 us."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{_three_digits(seconds / unit)} {name}"
    return f"{seconds * 1e9:.0f} ns"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def human_range(bytes_min: int, bytes_max: int | None) -> str:
    """A bin by its edges. The lower one is that of the bin below: 128 KiB-16 MiB begins just above 128 KiB."""
    if bytes_max is None:
        return f"> {human_bytes(bytes_min - 1)}"
    low, high = human_bytes(bytes_min - 1 if bytes_min > 1 else bytes_min), human_bytes(bytes_max)
    if bytes_min >= bytes_max:
        return high
    # 16-32 MiB: the unit once where it is the same.
    return f"{low.split()[0] if low.split()[1] == high.split()[1] else low}-{high}"


def human_share(share: float) -> str:
    """In percent, without its sign."""
    return "<1" if 0 < share < 0.005 else f"{share:.0%}".rstrip("%")
