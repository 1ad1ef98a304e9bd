"""result.json, which rank 0 writes when the tuning ends, and what is remembered of earlier jobs."""

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvscale.comm_tuning.autotune.rank_side.request import RankRequest, Remembered, Settings, words
from hvscale.comm_tuning.autotune.rank_side.search import LiveSearch, Outcome
from hvscale.comm_tuning.autotune.rank_side.switch import library_name

FILE = "result.json"
SCHEMA = "hvscale/autotune/1"


class Result:
    """The result of one tuned phase.

    `earlier`: what earlier phases of this process have found, and this one once it ends, as in a
    request's `remembered`.
    """

    def __init__(self, request: RankRequest, earlier: list[dict[str, Any]]) -> None:
        self.request, self.earlier = request, earlier
        self.best: Settings = {}  # as the file has it
        self.fingerprint: dict[str, Any] = {}
        self.known: dict[str, Any] = {}

    def set_aside(self) -> None:
        """Keep the file under the number of ranks: the next phase writes another."""
        folder = Path(self.request.folder)
        try:
            (folder / FILE).replace(folder / f"result-np{self.fingerprint.get('np', 0)}.json")
        except OSError:
            return  # this rank has written none

    def describe(self, sizes: Sequence[tuple[int, str]], np: int, ranks_per_node: int) -> None:
        """Note which job this is; `sizes`: bytes and type of each gradient."""
        self.fingerprint = {
            "gradients": gradients_digest(sizes),
            "gradient_bytes": sum(size for size, _ in sizes),
            "tensors": len(sizes),
            "np": np,
            "ranks_per_node": ranks_per_node,
            "library": self.request.library or library_name(),
            "link": self.request.link,
        }

    def describe_messages(self, sizes: Sequence[tuple[int, str]], threshold: int, live: list[str], nccl: bool) -> None:
        """Note what a proposal for the next start depends on.

        `threshold`: of the fusion, in bytes. `live`: the knobs that this job can change.
        """
        self.known = {"largest_message_bytes": largest_message(sizes, threshold), "live_knobs": live, "nccl": nccl}

    def recall(self, accepted: Sequence[Settings]) -> tuple[Remembered | None, str]:
        """The remembered settings of this job, and what is wrong with them; both may be empty."""
        for entry in (*self.earlier, *self.request.remembered):
            if entry.get("fingerprint") == self.fingerprint:
                settings = {str(knob): str(value) for knob, value in entry["settings"].items()}
                unusable = [knob for knob, value in settings.items() if {knob: value} not in accepted]
                if not unusable:
                    return Remembered(settings, bool(entry.get("proven", True))), ""
                return None, f"remembered settings are not used: this job cannot change {', '.join(unusable)} now"
        return None, ""

    def finish(self, outcome: Outcome, search: LiveSearch) -> None:
        """Write the outcome of a whole search."""
        self._note(outcome.settings, proven=True)
        self._write(
            search,
            state=outcome.state,
            reason=outcome.reason,
            settings=outcome.settings,
            remembered=outcome.remembered,
            pairs=outcome.pairs,
        )
        _say(sentence(outcome, search))

    def stop(self, reason: str, search: LiveSearch | None) -> None:
        """Write that the tuning ended early."""
        if search is not None:
            self._write(search, state="unfinished", reason=reason, settings={}, remembered=False, pairs=[])
        else:
            self._save({"state": "not tuned", "reason": reason})
        _say(f"the defaults are kept: {reason}" if search is not None else f"nothing was tuned: {reason}")

    def save_best(self, search: LiveSearch) -> None:
        """Write the best settings so far, if they have changed: a signal may end the program."""
        if search.best != self.best:
            self.best = search.best
            self._write_unproven("the job ended before the proof", search)

    def _write_unproven(self, reason: str, search: LiveSearch) -> None:
        fields = {"settings": {}, "unproven": search.best, "remembered": False, "pairs": []}
        self._write(search, state="unfinished", reason=reason, **fields)

    def break_off(self, reason: str, search: LiveSearch) -> None:
        """Write the best settings of a search that the end of the program interrupted."""
        if not search.best:
            self.stop(reason, search)
            return
        self._note(search.best, proven=False)
        self._write_unproven(reason, search)
        _say(f"nothing is proven: {reason}; the best so far: {words(search.best)}")

    def _note(self, settings: Settings, proven: bool) -> None:
        """Note what this phase has found for later phases of this process."""
        self.earlier[:] = [entry for entry in self.earlier if entry["fingerprint"] != self.fingerprint]
        if settings:
            self.earlier.append({"fingerprint": self.fingerprint, "settings": settings, "proven": proven})

    def _write(self, search: LiveSearch, **fields: Any) -> None:
        trials = [
            {"settings": one.settings, "steps": one.steps, "ratio": one.ratio, "kept": one.kept}
            for one in search.trials
        ]
        self._save(
            {
                **fields,
                "drops_remembered": search.drops_remembered,
                "fingerprint": self.fingerprint,
                "wait_share": search.wait_share,
                **self.known,
                "steps": search.used,
                "default_seconds": search.base,
                "lost_seconds": search.lost,
                "switches": sum(map(len, search.switches.values())),
                "switch_seconds": {"in_place": search.switch_seconds(False), "restart": search.switch_seconds(True)},
                "trials": trials,
            }
        )

    def _save(self, fields: dict[str, Any]) -> None:
        folder = Path(self.request.folder)
        temporary = folder / f".{FILE}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("w") as stream:
                json.dump({"schema": SCHEMA, **fields}, stream, indent=2)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(folder / FILE)
        except OSError as error:
            _say(f"cannot write {folder / FILE}: {error.strerror}; the settings are not remembered")


def gradients_digest(sizes: Sequence[tuple[int, str]]) -> str:
    """Names the multiset of gradients, whose order may differ between runs."""
    counted = sorted(Counter(sizes).items())
    return hashlib.sha256(json.dumps(counted).encode()).hexdigest()[:16]


def largest_message(sizes: Sequence[tuple[int, str]], threshold: int) -> int:
    """The bytes of the largest message that Horovod can send.

    It packs gradients of one type into messages up to the threshold, and never splits one.
    `sizes`: bytes and type of each gradient.
    """
    of_type: Counter[str] = Counter()
    for size, dtype in sizes:
        of_type[dtype] += size
    return max((max(size, min(of_type[dtype], threshold)) for size, dtype in sizes), default=0)


def sentence(outcome: Outcome, search: LiveSearch) -> str:
    """The outcome in one line."""
    if outcome.state != "tuned" or outcome.gain is None:
        return f"the defaults are kept after {search.used} steps: {outcome.reason}"
    mean, low, high = outcome.gain
    again = "remembered " if outcome.remembered else ""
    return (
        f"{again}{words(outcome.settings)}: steps are {mean:.2f} times as fast as with the defaults "
        f"(95 % interval {low:.2f} to {high:.2f}, {len(outcome.pairs)} pairs of blocks, after {search.used} steps)"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"hvscale: autotune: {text}\n")
    sys.stderr.flush()
