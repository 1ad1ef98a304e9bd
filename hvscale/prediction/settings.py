"""The knobs that the model knows, and their values in a prediction."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hvscale.core.errors import RequestError
from hvscale.core.numbers import read_whole
from hvscale.core.suggest import nearest_name
from hvscale.core.units import MIB
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.measured_costs import ALGORITHM_NAMES
from hvscale.prediction.model.samples import algorithm_name
from hvscale.profiling.analyze.grouping import SIZE, UNITS

MOST_BYTES = 1 << 50
MOST_ENTRIES = 2**31 - 1  # of Horovod's cache
MOST_CYCLE_MS = 60_000.0
KNOBS = ("fusion_threshold", "cycle_time", "cache_capacity", "allreduce_algorithm")


@dataclass(frozen=True)
class PredictedSettings:
    """Horovod's settings, and the algorithm of all-reduce (None: the one that was measured)."""

    horovod: HorovodSettings
    algorithm: str | None = None

    def described(self) -> dict[str, str]:
        """By knob, as `--set` takes them."""
        fields = {
            "fusion_threshold": f"{self.horovod.fusion_bytes}",
            "cycle_time": f"{1000 * self.horovod.cycle_seconds:g}",
            "cache_capacity": f"{self.horovod.cache_capacity}",
        }
        return fields if self.algorithm is None else {**fields, "allreduce_algorithm": self.algorithm}


def recorded_settings(variables: Mapping[str, str]) -> HorovodSettings:
    """The settings in the environment variables of a recording."""
    defaults = HorovodSettings()

    def value(name: str, default: float, most: float) -> float:
        text = variables.get(name)
        try:
            found = default if text is None else float(text)
        except ValueError:
            found = -1.0
        if not 0 <= found <= most:
            raise RequestError(f"the recording has an invalid variable of Horovod: {name}={text}")
        return found

    return HorovodSettings(
        cycle_seconds=value("HOROVOD_CYCLE_TIME", 1000 * defaults.cycle_seconds, MOST_CYCLE_MS) / 1000,
        fusion_bytes=int(value("HOROVOD_FUSION_THRESHOLD", defaults.fusion_bytes, MOST_BYTES)),
        cache_capacity=int(value("HOROVOD_CACHE_CAPACITY", defaults.cache_capacity, MOST_ENTRIES)),
    )


def apply(settings: PredictedSettings, requests: Iterable[str], option: str = "--set") -> PredictedSettings:
    """Apply the values of `option`.

    Raises RequestError for a knob that the model does not know, and for one with two values.
    """
    given: dict[str, str] = {}
    for request in requests:
        knob, _, text = (part.strip() for part in request.partition("="))
        knob, typed = knob.replace("-", "_"), f"{option} {request}"
        if knob not in KNOBS:
            nearest = nearest_name(knob, KNOBS)
            suggestion = f"did you mean {nearest}? " if nearest else ""
            raise RequestError(
                f"{typed}: {suggestion}the model knows {', '.join(KNOBS)}; measure other knobs with "
                "`hvscale compare-settings -- hvscale replay RUN`"
            )
        if given.setdefault(knob, text) != text:
            raise RequestError(f"{typed}: {knob} is also set to {given[knob]}; set it once")
        settings = _apply(settings, knob, text, typed)
    return settings


def _apply(settings: PredictedSettings, knob: str, text: str, typed: str) -> PredictedSettings:
    if knob == "allreduce_algorithm":
        if not any(text in names for names in ALGORITHM_NAMES.values()):
            known = ", ".join(names[0] for names in ALGORITHM_NAMES.values())
            raise RequestError(f"{typed}: the model knows the algorithms {known}")
        return replace(settings, algorithm=algorithm_name(text))
    if knob == "cycle_time":
        return replace(settings, horovod=replace(settings.horovod, cycle_seconds=milliseconds(text, typed) / 1000))
    if knob == "cache_capacity":
        return replace(settings, horovod=replace(settings.horovod, cache_capacity=whole(text, typed, MOST_ENTRIES)))
    return replace(settings, horovod=replace(settings.horovod, fusion_bytes=size(text, typed)))


def milliseconds(text: str, typed: str) -> float:
    try:
        found = float(text.lower().removesuffix("ms"))
    except ValueError:
        found = -1.0
    if not 0 <= found <= MOST_CYCLE_MS:
        raise RequestError(f"{typed}: give milliseconds, such as cycle_time=5")
    return found


def whole(text: str, typed: str, most: int) -> int:
    found = read_whole(text, 0, most)
    if found is None:
        raise RequestError(f"{typed}: give a whole number")
    return found


def size(text: str, typed: str) -> int:
    match = SIZE.fullmatch(text.strip())
    found = int(match[1]) * UNITS[match[2].upper()] if match else MOST_BYTES + 1
    if found > MOST_BYTES:
        raise RequestError(f"{typed}: give bytes, such as fusion_threshold={16 * MIB} or 16M")
    return found
