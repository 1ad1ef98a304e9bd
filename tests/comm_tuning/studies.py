"""Synthetic study documents for tests of their output files; tests/system has real runs."""

from typing import Any

from hvscale.comm_tuning.tune.document import KnobChoice, Pair, Proof, Trial, TuneDocument
from hvscale.core.run_folder import Library
from hvscale.core.statistics import Estimate
from hvscale.launch.options import LaunchOptions

LIBRARIES = {
    "openmpi": Library(flavour="openmpi", version="5.0.11", transport="auto", transports=["ob1", "ucx", "cm"]),
    "mpich": Library(flavour="mpich", version="5.0.2", transport="ucx", transports=["ucx", "ofi"]),
    "mvapich2": Library(flavour="mvapich2", version="2.3.7-GDR", launcher="/opt/mv2/bin/mpirun_rsh"),
    "gloo": Library(flavour="gloo", version="inside Horovod 0.28.1", transport="tcp", transports=["tcp"]),
}


def study(
    winner: dict[str, str] | None, flavour: str = "openmpi", accepted: bool | None = True, **more: Any
) -> TuneDocument:
    """A study that found `winner`; `accepted`: the result of the proof, None without a proof."""
    fields: dict[str, Any] = {
        "folder": "/studies/one",
        "state": "finished",
        "command": ["python", "train.py"],
        "np": 4,
        "launch": LaunchOptions(mpi=flavour),
        "library": LIBRARIES[flavour],
        "unit": "images/s",
        "measured_by": "steps.jsonl",
        "winner": winner,
        "trials": [
            trial(0, {}, 10.0),
            trial(1, winner or {"cycle_time": "5"}, 13.0),
            Trial(
                number=2,
                settings={"cycle_time": "9"},
                state="crashed",
                run="r2",
                start=2,
                steps=0,
                seconds=1,
                problem="rank 1: exit 1",
            ),
        ],
        "space": [
            KnobChoice(knob="cycle_time", values=["1", "5", "9"], reason=""),
            KnobChoice(knob="segment_size", values=[], reason="no message is larger than 64 KiB"),
        ],
    }
    if accepted is not None:
        low = 1.2 if accepted else 0.9
        pairs = [
            Pair(default=10.0, tuned=13.0, default_run=f"d{number}", tuned_run=f"t{number}") for number in range(7)
        ]
        fields["proof"] = Proof(
            settings=winner or {"cycle_time": "5"},
            pairs=pairs,
            gain=Estimate(mean=1.3, low=low, high=1.4),
            accepted=accepted,
        )
    return TuneDocument(**{**fields, **more})


def trial(number: int, settings: dict[str, str], throughput: float) -> Trial:
    found = Estimate(mean=throughput, low=throughput * 0.95, high=throughput * 1.05)
    return Trial(
        number=number,
        settings=settings,
        state="measured",
        run=f"r{number}",
        start=number,
        steps=50,
        seconds=9.5,
        throughput=found,
    )
