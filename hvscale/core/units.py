"""Format numbers, sizes and times with three digits."""

WIDEST_INTERVAL = 100  # high / low; a wider interval is useless and spoils a table or a plot
KIB, MIB, GIB = 2**10, 2**20, 2**30
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def human_bytes(size: float) -> str:
    """128 KiB, 1.5 GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{_three_digits(size / unit)} {name}"
    return f"{size:.0f} B"


def human_seconds(seconds: float) -> str:
    """12.3 ms, 4.56 us."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{_three_digits(seconds / unit)} {name}"
    return f"{seconds * 1e9:.0f} ns"


def human_age(seconds: float) -> str:
    """12 d, 3 h, 5 min or 0 s: whole units, rounded down."""
    size, unit = next((one for one in AGES if seconds >= one[0]), AGES[-1])
    return f"{int(seconds // size)} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"  # .3g writes 999.5 as 1e+03


def human_range(bytes_min: int, bytes_max: int | None) -> str:
    """Format a bin by its edges, the lower one exclusive: 128 KiB-16 MiB starts above 128 KiB."""
    if bytes_max is None:
        return f"> {human_bytes(bytes_min - 1)}"
    low, high = human_bytes(bytes_min - 1 if bytes_min > 1 else bytes_min), human_bytes(bytes_max)
    if bytes_min >= bytes_max:
        return high
    # 16-32 MiB: a common unit is written once.
    return f"{low.split()[0] if low.split()[1] == high.split()[1] else low}-{high}"


def human_share(share: float) -> str:
    """Format a share as a percentage, without the percent sign."""
    return "<1" if 0 < share <= 0.005 else f"{share:.0%}".rstrip("%")


def human_number(value: float | None, digits: int = 3) -> str:
    """Format a number for a table: 0, 0.963, 98.2, 1234, 5.34e+09; "-" for None."""
    if not value:
        return "-" if value is None else "0"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:#.{digits}g}".rstrip(".")


def human_interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """Format an interval: `1.2 to 1.4`, "-" if unknown, "> factor 100" if too wide to be useful."""
    if low is None or high is None:
        return "-"
    if not is_narrow(low, high):
        return f"> factor {WIDEST_INTERVAL}"
    return f"{human_number(low, digits)} to {human_number(high, digits)}"


def signed_percent(percent: float) -> str:
    """Format a change in percent: +3.5, -212."""
    return f"{percent:+.1f}" if abs(percent) < 100 else f"{percent:+.0f}"


def signed_percent_interval(low: float | None, high: float | None) -> str:
    """Format the interval of a change in percent: `+1.2 to +3.4`, "-" if unknown, "> factor 100" if
    an end is a change by more than that.
    """
    if low is None or high is None:
        return "-"
    if not is_narrow_change(low, high):
        return f"> factor {WIDEST_INTERVAL}"
    return f"{signed_percent(low)} to {signed_percent(high)}"


def is_narrow_change(low: float, high: float) -> bool:
    """Return whether both ends of an interval, in percent, are changes by less than factor 100."""
    return max(-low, high) <= 100 * (WIDEST_INTERVAL - 1)


def is_narrow(low: float | None, high: float | None) -> bool:
    """Return whether an interval is known and narrow enough to be useful.

    The interval of two noisy runs can span many powers of ten.
    """
    return low is not None and high is not None and high <= WIDEST_INTERVAL * low
