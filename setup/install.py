"""Sets up hvscale: the environment in .venv from uv.lock, and Horovod built for it or taken from
the cache of built wheels.

    python3 setup/install.py [--dev]

This file keeps to what Python 3.6 can parse, so that an old interpreter gives the line below and
not a SyntaxError.
"""

import sys

OLDEST_PYTHON = (3, 11)


def refuse_old_python():
    # type: () -> None
    """End with status 2 and one line when this interpreter is older than the project allows."""
    if tuple(sys.version_info[:2]) >= OLDEST_PYTHON:
        return
    found = ".".join(str(part) for part in sys.version_info[:2])
    sys.stderr.write(
        "hvscale set-up: Python " + found + " is too old, 3.11 or later is needed: install it "
        "(Debian, Ubuntu: apt install python3.11 python3.11-dev python3.11-venv; Fedora, RHEL: "
        "dnf install python3.11 python3.11-devel) and name it: make setup PYTHON=python3.11\n"
    )
    sys.exit(2)


if __name__ == "__main__":
    refuse_old_python()
    import steps

    sys.exit(steps.main(sys.argv[1:]))
