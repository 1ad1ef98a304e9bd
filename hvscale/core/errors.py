"""The errors of commands, each with its exit status."""

EXIT_DONE = 0
EXIT_WRONG_REQUEST = 2
EXIT_RANK_FAILED = 3
EXIT_UNTRUSTED = 4
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the state is saved; start the job again


class HvscaleError(Exception):
    """An expected failure: the command line prints one line and exits with `exit_status`."""

    exit_status = EXIT_WRONG_REQUEST


class RequestError(HvscaleError):
    """The request is invalid; the message says what is wrong and how to fix it."""

    exit_status = EXIT_WRONG_REQUEST


class ConflictError(RequestError):
    """Two parts of the request ask for different values of one setting."""


class RankFailedError(HvscaleError):
    """A rank was killed or exited with a status other than zero.

    `last_lines`: the last lines of its output.
    """

    exit_status = EXIT_RANK_FAILED

    def __init__(self, message: str, last_lines: list[str], exit_status: int = EXIT_RANK_FAILED) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.last_lines = last_lines


class SavedError(HvscaleError):
    """Training was asked to stop and saved its state; it can be resumed."""

    exit_status = EXIT_TRY_AGAIN


class UntrustedError(HvscaleError):
    """A measurement that cannot be trusted; the message says why."""

    exit_status = EXIT_UNTRUSTED
