"""The ways a command can fail, each with its exit status."""

EXIT_DONE = 0
EXIT_WRONG_REQUEST = 2
EXIT_RANK_FAILED = 3
EXIT_UNTRUSTED = 4
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: saved, and to be started again


class HvscaleError(Exception):
    """Printed by the command line as one line, without a traceback; the process ends with
    `exit_status`.
    """

    exit_status = EXIT_WRONG_REQUEST


class RequestError(HvscaleError):
    """What the user asked for is wrong; the message says what, and how to fix it."""

    exit_status = EXIT_WRONG_REQUEST


class RankFailedError(HvscaleError):
    """A rank of the job died or ended with a status other than zero; `last_lines` is what it wrote
    at the end.
    """

    exit_status = EXIT_RANK_FAILED

    def __init__(self, message: str, last_lines: list[str], exit_status: int = EXIT_RANK_FAILED) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.last_lines = last_lines


class SavedError(HvscaleError):
    """Training was asked to stop and has saved its state; it can be resumed from there."""

    exit_status = EXIT_TRY_AGAIN


class UntrustedError(HvscaleError):
    """A measurement that cannot be trusted; the message says why."""

    exit_status = EXIT_UNTRUSTED
