"""A damaged file of a study, when the study is resumed or listed; and damaged tables."""

import shutil
from functools import partial
from pathlib import Path

from fault_classes import FAULTS, FaultClass
from fault_classes._mutations import mutate
from fault_classes._originals import BENCH, COLLECTIVES, SCALE, TUNE, put_programs
from fault_classes._try import Try
from hvscale.core.errors import EXIT_DONE

STUDIES = {"scaled": SCALE, "benched": BENCH, "tuned": TUNE, "collectives": COLLECTIVES}
FILES = ("*.json", "*.json", "*.jsonl", "*/run.json", "*/*.jsonl", "*/*-request.json", "*/steps.jsonl", "*.toml")
# A bench is not resumed; predict reads its document.
PREDICT = ("predict", "job", "--from-table", "benched/bench.json", "--np", 4, "--run", "predicted")
TABLES = {"tuned": ("--settings", "settings.toml"), "collectives": ("--collectives", "collectives.toml")}


def resumed(one: Try, study: str) -> None:
    """Resume the study; it ends with all figures, or with one error that keeps the files."""
    folder = one.copy(study)
    put_programs(one.folder, one.original)
    pattern = one.random.choice([pattern for pattern in FILES if any(folder.glob(pattern))])
    file, damage = mutate(folder, (pattern,), one.random)
    listed = one.random.random() < 0.4
    one.disturbance = f"{study}/{file}: {damage}; {'runs' if listed else 'resume'}"
    if listed:
        for where in (".", study):
            one.run("runs", where, "--json", statuses=(EXIT_DONE,)).document()
        return
    words = [*(STUDIES[study] if study != "benched" else PREDICT)]
    words.insert(words.index("--run"), "--json")
    if study == "benched":
        one.copy("job")
    answer = one.run(*words, forked=False)
    one.require(answer.status == EXIT_DONE or damage != "nothing", f"failed without a fault: {answer.stderr}")
    if answer.status == EXIT_DONE:
        answer.document()
    one.check_no_processes()


def applied(one: Try) -> None:
    """Start ranks with a damaged settings.toml or collectives.toml."""
    study = one.random.choice(sorted(TABLES))
    option, name = TABLES[study]
    file = Path(shutil.copy2(one.original(study) / name, one.folder))
    put_programs(one.folder, one.original)
    _, damage = mutate(one.folder, (name,), one.random)
    one.disturbance = f"{name}: {damage}; launch {option}"
    answer = one.run("launch", "-np", 2, option, file, "--run", "job", "--", "./allreduces", 10, forked=False)
    one.require(answer.status == EXIT_DONE or damage != "nothing", f"failed without a fault: {answer.stderr}")
    one.check_no_processes()


for study, tries, sample in (("scaled", 120, 2), ("benched", 60, 0), ("tuned", 60, 0), ("collectives", 60, 0)):
    FAULTS.register(f"mutated-{study}", FaultClass(partial(resumed, study=study), tries=tries, sample=sample))
FAULTS.register("mutated-table", FaultClass(applied, tries=150, sample=0))
