"""The console script `hvscale`."""

import signal


def main() -> None:
    """Run the command. Ctrl-C while its modules are loaded ends the process without a traceback."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as under nohup
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hvscale.cli.main import main as run

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
