"""The disk is full after a random number of pages, for each command that writes."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fault_classes import FAULTS, FaultClass
from fault_classes._originals import BENCH, SCALE, TRAIN_SMALL, put_programs
from fault_classes._try import Try
from hvscale.core.errors import EXIT_DONE, EXIT_UNTRUSTED, EXIT_WRONG_REQUEST
from tests.system import services

WRITERS: dict[str, tuple[tuple[object, ...], int, bool]] = {  # words, most KiB, whether a single process
    "profile": (("profile", "-np", 2, "--run", "small/job", "--", "./steady", 0.2, -1), 4000, False),
    "launch": (("launch", "-np", 2, "--run", "small/job", "--", "./allreduces", 10), 60, False),
    "train": ((*TRAIN_SMALL, "--run", "small/job"), 160, True),
    "scale": ((*SCALE[:-4], "small/job", *SCALE[-3:]), 200, False),
    "bench": ((*BENCH[:-1], "small/job"), 200, False),
    "report": (("report", "profiled", "--output", "small/page.html"), 6000, True),
    "breakdown": (("breakdown", "profiled", "--csv", "small/table.csv"), 8, True),
    "trace": (("report", "profiled", "--output", "page.html", "--trace", "small/trace.json"), 60, True),
}
READABLE_AFTER = ("profile", "launch", "train", "bench")


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def why_not() -> str | None:
    return services.why_no_namespaces() and "mounting a small file system needs root"


def attempt(one: Try) -> None:
    """Fill a small disk with a random size: one error, or success with a warning."""
    name = one.random.choice(sorted(WRITERS))
    words, most, single = WRITERS[name]
    kibibytes = one.random.randrange(4, most)
    one.disturbance = f"{name} with {kibibytes} KiB"
    put_programs(one.folder, one.original)
    if "profiled" in words:
        one.copy("profiled")
    with small_disk(one.folder / "small", kibibytes):
        answer = one.run(*words, forked=single)
        one.check_no_processes()
        job = one.folder / "small/job"
        if name in READABLE_AFTER and (job / "run.json").exists():
            state = json.loads((job / "run.json").read_text())["state"]
            ended = ("finished",) if answer.status == EXIT_DONE else ("failed", "finished")
            one.require(state in ended, f"exit status {answer.status}, but run.json has the state {state}")
            one.run("runs", "small", "--json", statuses=(EXIT_DONE,)).document()
        if name == "profile" and (job / "run.json").exists():
            one.run("breakdown", job, "--json", statuses=(EXIT_DONE, EXIT_UNTRUSTED, EXIT_WRONG_REQUEST))


FAULTS.register("full-disk", FaultClass(attempt, tries=150, sample=3, why_not=why_not))
