"""select_packages.py IN OUT PYTHON: keep the requirements that another Python on Linux needs.

It runs in an environment that has the `packaging` package.
"""

import platform
import sys
from pathlib import Path

from packaging.requirements import Requirement


def selected(text: str, python: str) -> list[str]:
    """Return the requirements, each on a line with its hashes, whose markers hold for `python`."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": platform.machine(),
    }
    kept = []
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = line.split(" --hash=")
        parsed = Requirement(requirement)
        if parsed.name != "horovod" and (parsed.marker is None or parsed.marker.evaluate(environment)):
            kept.append(" ".join([f"{parsed.name}{parsed.specifier}", *(f"--hash={one.strip()}" for one in hashes)]))
    return kept


if __name__ == "__main__":
    Path(sys.argv[2]).write_text("\n".join(selected(Path(sys.argv[1]).read_text(), sys.argv[3])) + "\n")
