"""Set up hvscale: create .venv from uv.lock, and build Horovod or take its wheel from the cache.

    python3 setup/install.py [--dev]

Python 3.6 can parse this file, so that an old interpreter prints the error below and not a
SyntaxError.
"""

import sys

OLDEST_PYTHON = (3, 11)


def refuse_old_python():
    # type: () -> None
    """Exit with status 2 and one line if this interpreter is too old."""
    if tuple(sys.version_info[:2]) >= OLDEST_PYTHON:
        return
    found = ".".join(str(part) for part in sys.version_info[:2])
    sys.stderr.write(
        "hvscale set-up: Python " + found + " is too old: install 3.11 or later "
        "(Debian, Ubuntu: apt install python3.11 python3.11-dev python3.11-venv; Fedora, RHEL: "
        "dnf install python3.11 python3.11-devel) and type: make setup PYTHON=python3.11\n"
    )
    sys.exit(2)


if __name__ == "__main__":
    refuse_old_python()
    import steps

    sys.exit(steps.main(sys.argv[1:]))
