"""Disturb runs, studies and trainings at random, and check that hvscale answers well.

A try survives if each command succeeds with the right result, or prints one line that says what is
wrong and exits with status 2, 3 or 4; if nothing hangs; if what was recorded stays readable; and if
nothing is left that `hvscale cleanup` does not remove. Any other try is lost.

Example: `python benchmarks/faults.py --folder faults --minutes 60`. The same command again resumes.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for tests.system, which starts services

STOPPED = 130  # 128 + SIGINT


def main() -> int:
    from fault_classes import FAULTS
    from fault_classes._campaign import RESULTS, Campaign, print_table, skipped

    from hvscale.core.errors import RequestError

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep results here and resume; default: a temporary folder")
    parser.add_argument("--seed", type=int, default=1, help="repeats the same tries; default 1")
    parser.add_argument("--minutes", type=float, help="start no try after this time; default: no limit")
    parser.add_argument("--only", default="", help="run only these classes, comma-separated")
    parser.add_argument("--tries", type=float, default=1.0, help="multiply the number of tries by this; default 1")
    parser.add_argument("--sample", action="store_true", help="run the small sample that the test suite runs")
    parser.add_argument("--jobs", type=int, default=4, help="tries at a time; default 4")
    parser.add_argument("--patience", type=float, default=1.0, help="multiply time limits by this, on a busy machine")
    parser.add_argument("--class", dest="name", help="run one try of this class again: see --try")
    parser.add_argument("--try", dest="number", type=int, default=0, help="number of the try for --class")
    parser.add_argument("--list", action="store_true", help="list the classes with their tries, and exit")
    options = parser.parse_args()
    if options.list:
        for name, fault in FAULTS.all().items():
            print(f"{name:24}{fault.tries:6}  {fault.why_not() or ''}")
        return 0
    names = [name for name in options.only.split(",") if name] or [options.name or ""]
    try:
        names = [*FAULTS.names()] if names == [""] else names
        classes = {name: FAULTS.get(name) for name in names}
        with tempfile.TemporaryDirectory(prefix="hvscale-faults-", ignore_cleanup_errors=True) as temporary:
            campaign = Campaign(options.folder or Path(temporary), options.seed, options.patience)
            reasons = skipped(names)
            if options.name:
                result = campaign.attempt(options.name, classes[options.name], options.number)
                print_table([result], reasons)
                return bool(result.lost)
            plan = {
                name: fault.sample if options.sample else max(1, round(fault.tries * options.tries))
                for name, fault in classes.items()
                if name not in reasons
            }
            try:
                campaign.run(plan, options.minutes, options.jobs)
            finally:
                print_table([result for result in campaign.results if result.name in classes], reasons)
            if options.folder:
                print(f"results: {options.folder / RESULTS}", file=sys.stderr)
            return int(any(result.lost for result in campaign.results if result.name in classes))
    except RequestError as error:
        print(f"faults: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("faults: stopped by Ctrl-C; the same command with --folder resumes", file=sys.stderr)
        return STOPPED


if __name__ == "__main__":
    sys.exit(main())
