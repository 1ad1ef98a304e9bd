"""A rank or the controller of a bench, a scaling study or a tune killed; the study is resumed."""

import json
import signal
from contextlib import suppress
from functools import partial

import psutil

from fault_classes import FAULTS, FaultClass
from fault_classes._originals import BENCH, SCALE, TUNE, put_programs
from fault_classes._try import Try, ranks_of, wait_for
from hvscale.core.errors import EXIT_DONE, EXIT_RANK_FAILED

LONGEST_PAUSE = {"benched": 3.0, "scaled": 6.0, "tuned": 15.0}
WORDS = {"benched": BENCH, "scaled": SCALE, "tuned": TUNE}


def attempt(one: Try, study: str) -> None:
    """Kill, resume with the same command, and compare the size of the document with a whole one."""
    put_programs(one.folder, one.original)
    victim = one.random.choice(["a rank", "the controller", "Ctrl-C"])
    one.disturbance = f"{study}: {victim}"
    with one.cleaned():
        running = one.start(*WORDS[study])
        one.pause(LONGEST_PAUSE[study])
        if victim == "a rank":
            wait_for(lambda: bool(ranks_of(one.folder)), running)
            with suppress(psutil.Error, IndexError):
                one.random.choice([*ranks_of(one.folder).values()]).kill()
            # A tune measures on without the trial that failed.
            one.judge(running, (EXIT_DONE, EXIT_RANK_FAILED))
        elif victim == "Ctrl-C":
            running.kill(signal.SIGINT)
            one.judge_interrupted(running)
        else:
            running.kill()
            running.end()
        one.check_no_processes()
        if study == "benched" and (one.folder / study).exists():  # a bench is not resumed
            (one.folder / study).rename(one.folder / "killed")
        one.run(*WORDS[study], statuses=(EXIT_DONE,), forked=False)
    check_document(one, study)


def check_document(one: Try, study: str) -> None:
    """Raises LostError unless the study's document has the rows of an uninterrupted one."""
    names = {"benched": "bench.json", "scaled": "scale.json", "tuned": "tune.json"}
    folders = (one.folder / study, one.original(study))
    found, whole = (json.loads((folder / names[study]).read_text()) for folder in folders)
    one.require(found["schema"] == whole["schema"], "another schema")
    one.require(set(found) == set(whole), "the resumed study has other keys")
    one.require(found.get("state", "finished") == "finished", f"the resumed study is {found.get('state')}")


for study, tries, sample in (("benched", 30, 0), ("scaled", 30, 1), ("tuned", 6, 0)):
    FAULTS.register(f"killed-{study}", FaultClass(partial(attempt, study=study), tries=tries, sample=sample))
