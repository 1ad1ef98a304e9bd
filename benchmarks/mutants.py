"""Change the dense logic in small ways (mutants), and count the changes that its unit tests notice.

mutmut makes the mutants and runs for each the tests that reach it. Those that no test fails on are
printed. The same command again resumes.

Example: `python benchmarks/mutants.py --folder mutants-campaign --only 'core/*'`
"""

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import hvscale.core

CLONE = Path(__file__).resolve().parents[1]
# Below hvscale/: analysis of profiles, statistics, decisions, scores of searches, translation of
# knobs, and prediction.
LOGIC = (
    "core/statistics.py",
    "comm_tuning/autotune/rank_side/search.py",
    "comm_tuning/collectives/decide/cost_model.py",
    "comm_tuning/collectives/decide/decide.py",
    "comm_tuning/collectives/decide/measurements.py",
    "comm_tuning/knobs/values.py",
    "comm_tuning/tune/scores.py",
    "prediction/model/computation.py",
    "prediction/model/costs.py",
    "prediction/model/horovod_loop.py",
    "prediction/model/measured_costs.py",
    "prediction/model/slowed_computing.py",
    "profiling/analyze/buffer_reuse.py",
    "profiling/analyze/durations.py",
    "profiling/analyze/exposed.py",
    "profiling/analyze/messages.py",
    "profiling/analyze/steps.py",
    "profiling/analyze/waiting.py",
)
# Of these, mutmut takes the tests that reach a mutant. Those that start ranks or run commands run
# other processes, in which mutmut sees nothing.
TESTS = ("tests/bench", "tests/comm_tuning", "tests/core", "tests/prediction", "tests/profiling", "tests/studies")
# mutmut changes a copy, which the finder of an editable installation would hide: -S leaves it out.
RUN_MUTMUT = """
import builtins, sys
builtins.exit = sys.exit
sys.prefix = sys.exec_prefix = sys.argv.pop(1)
from mutmut.__main__ import cli
cli()
"""
KILLED = ("killed", "timeout", "suspicious", "segfault", "caught by type check")
SURVIVED = "survived"
UNTESTED = "no tests"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the copy and the results; resumes")
    parser.add_argument("--only", default="*", help="pattern of the files below hvscale/; default: all below")
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"default: {' '.join(TESTS)}")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time; default 2")
    options = parser.parse_args()
    chosen = [name for name in LOGIC if fnmatch.fnmatch(name, options.only)]
    if not chosen:
        parser.error(f"--only {options.only}: matches none of {', '.join(LOGIC)}")
    copy = options.folder / "clone"
    copy_clone(copy)
    (copy / "setup.cfg").write_text(configuration(chosen, options.tests))
    status = mutmut(copy, "run", "--max-children", str(options.jobs))
    if status:
        return status
    print_results(copy)
    return 0


def copy_clone(copy: Path) -> None:
    """Copy the tracked and the new files; mutmut finds out what has changed."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=CLONE, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = CLONE / name, copy / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for folder in map(Path, hvscale.core.__path__):
        if folder != CLONE / "hvscale" / "core":  # where an editable installation has the C libraries
            shutil.copytree(folder, copy / "hvscale" / "core", dirs_exist_ok=True)


def configuration(chosen: list[str], tests: Sequence[str]) -> str:
    """Return mutmut's settings."""
    lists = {
        "only_mutate": [f"hvscale/{name}" for name in chosen],
        "also_copy": ["benchmarks", "docs", "experiments", "native", "setup"],
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": ["-m", "not ranks and not commands", "-p", "no:cacheprovider"],
    }
    lines = ["[mutmut]", "source_paths=hvscale"]
    for name, words in lists.items():
        lines += [f"{name}=", *(f"    {word}" for word in words)]
    return "\n".join(lines) + "\n"


def mutmut(copy: Path, *words: str) -> int:
    """Run mutmut in the copy; return its exit status."""
    return subprocess.run(command(*words), cwd=copy, env=environment(), check=False).returncode


def command(*words: str) -> list[str]:
    return [sys.executable, "-S", "-c", RUN_MUTMUT, sys.prefix, *words]


def environment() -> dict[str, str]:
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    return {
        **os.environ,
        "PATH": programs,
        "PYTHONPATH": sysconfig.get_path("purelib"),  # multiprocessing's fork server ignores sys.path
        "CI": "true",  # Hypothesis then takes the same examples
    }


def output(copy: Path, *words: str) -> str:
    found = subprocess.run(command(*words), cwd=copy, env=environment(), capture_output=True, text=True, check=True)
    return found.stdout


def print_results(copy: Path) -> None:
    """Print a table by module in Markdown, then each surviving mutant's change."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for line in output(copy, "results", "--all", "true").splitlines():
        name, _, state = line.strip().rpartition(": ")
        counts[name.partition(".x")[0]][state] += 1
        if state == SURVIVED:
            survivors.append(name)
    print("| module | mutants | killed | survived | without a test | killed of all |")
    print("| --- | --- | --- | --- | --- | --- |")
    for module, states in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        killed = sum(states[state] for state in KILLED)
        total = states.total()
        share = f"{killed / total:.0%}" if total else "-"
        cells = [module.removeprefix("hvscale."), total, killed, states[SURVIVED], states[UNTESTED], share]
        print("|", " | ".join(map(str, cells)), "|")
    for name in survivors:
        changed = [line for line in output(copy, "show", name).splitlines() if line.startswith(("+", "-"))]
        print(f"\n{name}", *(line for line in changed if not line.startswith(("+++", "---"))), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
