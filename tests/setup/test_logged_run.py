"""Commands that the set-up runs and ends."""

import subprocess
import sys

from tests.conftest import HANG_SECONDS
from tests.setup.copies import CLONE

# A signal's exception between two lines of Popen.wait leaves its lock taken.
INTERRUPTED_WAIT = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from logged_run import end_process_group
process = subprocess.Popen(["sleep", "1200"], stdin=subprocess.PIPE, start_new_session=True)
process._waitpid_lock.acquire()
end_process_group(process)
print(process.returncode)
"""


def test_a_command_is_ended_after_an_interrupted_wait() -> None:
    words = [sys.executable, "-c", INTERRUPTED_WAIT, str(CLONE / "setup")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stdout) == (0, "-9\n"), done.stderr
