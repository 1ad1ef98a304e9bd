"""A damaged file of a profiled run, read by the commands that read runs."""

from functools import partial

from fault_classes import FAULTS, FaultClass
from fault_classes._mutations import contents, mutate
from fault_classes._try import Try
from hvscale.core.errors import EXIT_DONE

READERS: dict[str, tuple[object, ...]] = {
    "breakdown": ("breakdown", "RUN", "--json"),
    "breakdown --explain": ("breakdown", "RUN", "--explain", "--per-rank"),
    "compare": ("compare", "RUN", "other", "--json"),
    "compare with": ("compare", "other", "RUN"),
    "report": ("report", "RUN", "--output", "page.html"),
    "report --trace": ("report", "RUN", "other", "--trace", "trace.json", "--output", "page.html"),
    "watch": ("watch", "RUN", "--once", "--interval", 0.1),
    "runs": ("runs", ".", "--json"),
}
JOB_READERS: dict[str, tuple[object, ...]] = {
    "breakdown": ("breakdown", "RUN", "--json"),
    "report": ("report", "RUN", "--output", "page.html"),
    "trace": ("trace", "RUN", "--chakra", "chakra"),
    "predict": ("predict", "RUN", "--np", "4", "--json", "--run", "predicted"),
    "watch": ("watch", "RUN", "--once", "--interval", 0.1, "--json"),
}
PATTERNS = ("run.json", "run.json", "steps.jsonl", "hvprof/*", "hvprof/*", "ranks/*", "logs/*", "settings-reports/*")


def attempt(one: Try, original: str, readers: dict[str, tuple[object, ...]]) -> None:
    """Damage a file; a reader prints a table, or one error, and changes no file."""
    run = one.copy(original)
    # Patterns are drawn first: a run has many more files below ranks/ than run.json.
    pattern = one.random.choice([pattern for pattern in PATTERNS if any(run.glob(pattern))])
    file, damage = mutate(run, (pattern,), one.random)
    name = one.random.choice(sorted(readers))
    one.disturbance = f"{file}: {damage}; {name}"
    if "other" in readers[name]:
        one.copy(original, "other")
    before = contents(run)
    words = [str(run) if word == "RUN" else word for word in readers[name]]
    answer = one.run(*words)
    one.require(answer.status == EXIT_DONE or damage != "nothing", f"failed without a fault: {answer.stderr}")
    one.require(contents(run) == before, f"`{name}` changed a file of the run")
    if "--json" in words and answer.status == EXIT_DONE and name != "watch":
        answer.document()


FAULTS.register("mutated-run", FaultClass(partial(attempt, original="profiled", readers=READERS), tries=600, sample=20))
FAULTS.register("mutated-job", FaultClass(partial(attempt, original="job", readers=JOB_READERS), tries=300, sample=0))
