"""`hvscale watch --serve`."""

import contextlib
import socket
import sys

from hvscale.cli.console import print_message, print_text
from hvscale.cli.watch_view import key_waiter
from hvscale.profiling.watch.sampler import WatchSampler
from hvscale.studies.run_watch.server import WatchServer


def serve_page(sampler: WatchSampler, interval: float, port: int) -> None:
    """Serve the page until Ctrl-C or `q`, also after the run has ended.

    Raises RequestError if the port cannot be used.
    """
    server = WatchServer(port, interval)
    sample = sampler.sample()
    server.show(sample)
    server.start()
    print_text(server.url)
    sys.stdout.flush()
    print_message(
        f"from another machine: ssh -L {server.port}:127.0.0.1:{server.port} {socket.gethostname()}, then open the address "
        "there. q or Ctrl-C stops the page; the job runs on"
    )
    try:
        with contextlib.suppress(KeyboardInterrupt), key_waiter() as wait:
            while not wait(interval):
                if sample.has_ended:
                    continue
                sample = sampler.sample()
                server.show(sample)
                if sample.has_ended:
                    print_message(f"the run has ended: {sample.state}; the page shows its last state")
    finally:
        server.close()
