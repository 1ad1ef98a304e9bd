"""`hvscale bench param-server`: requests that start no ranks."""

from tests.conftest import Run


def test_np_names_the_option_for_workers(hvscale: Run) -> None:
    for words in (("-np", "4"), ("--np", "4")):
        done = hvscale("bench", "param-server", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "hvscale: -np 4: give --workers 4; the server is an additional rank\n"
    assert "-np" not in hvscale("bench", "param-server", "--help").stdout.split()
