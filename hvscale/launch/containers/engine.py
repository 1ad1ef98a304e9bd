"""Talks to the daemon of Docker, or to Podman's service, which answers the same requests.

Every failure is one line that says how to fix it.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from hvscale.core.errors import RequestError
from hvscale.launch.cleanup.ownership import RUN, RunLabel
from hvscale.launch.supervision import interrupts, programs

REMOVAL_IN_PROGRESS = 409  # Docker's status while another client removes it
REMOVAL_SECONDS = 30
PING_SECONDS = 5.0
DEFAULT_SOCKET = "unix:///var/run/docker.sock"

Made = TypeVar("Made")
_pending: "list[futures.Future[Any]]" = []


def address() -> str:
    """The daemon's address, for Docker's client library and its command-line tool."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET


def command() -> list[str]:
    """The words that start the command-line tool for that daemon: Docker's, or Podman's.

    Raises RequestError if neither is in PATH.
    """
    if tool := shutil.which("docker"):
        return [tool, "--host", address()]
    if tool := shutil.which("podman"):
        return [tool, "--remote", "--url", address()]
    raise RequestError(
        "no docker and no podman in PATH: install one (Debian, Ubuntu: apt install docker.io, or podman and set DOCKER_HOST)"
    )


def is_used() -> bool:
    """Whether runs on this machine can have containers: of Docker, or of Podman's service."""
    return bool(shutil.which("docker") or (shutil.which("podman") and os.environ.get("DOCKER_HOST")))


@contextmanager
def connection() -> Iterator[Any]:
    """Context: a `docker.DockerClient`.

    Raises RequestError if the daemon does not answer, or if a call inside fails.
    """
    # Imported here: it takes 0.25 s, and other placements do not need it.
    import docker
    import requests

    try:
        with_daemon = docker.DockerClient(base_url=address(), version="auto", timeout=programs.answer_seconds())
    except (docker.errors.DockerException, ValueError) as error:  # ValueError: an invalid DOCKER_HOST
        raise RequestError(connection_error(error)) from error
    try:
        yield with_daemon
    except docker.errors.DockerException as error:  # not only of the daemon: the library refuses an empty name
        raise RequestError(f"Docker refused the request: {getattr(error, 'explanation', None) or error}") from error
    except requests.exceptions.ConnectionError as error:
        raise RequestError(f"the Docker daemon at {address()} closed the connection: check its log") from error
    except requests.exceptions.Timeout as error:
        raise RequestError(timeout_message(request_name(error))) from error
    finally:
        with_daemon.close()


def is_rootless(client: Any) -> bool:
    """Whether a user runs the daemon, who is root in its containers."""
    info = client.info()
    return bool(info.get("Rootless")) or "name=rootless" in (info.get("SecurityOptions") or [])  # Podman, Docker


def answers(client: Any) -> bool:
    """Whether the daemon answers now: a stopped one accepts connections but does not answer."""
    import docker
    import requests

    usual, client.api.timeout = client.api.timeout, PING_SECONDS
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, requests.exceptions.RequestException):
        return False
    finally:
        client.api.timeout = usual


def create_tracked(create: Callable[[], Made]) -> Made:
    """Call `create`, which creates something in Docker, and return its result.

    A signal ends the wait, but the daemon may still be working: `remove_all` waits for its answer
    before it looks for what was created.
    """
    call: futures.Future[Made] = futures.Future()
    _pending.append(call)  # before it begins: a signal may come at any moment
    programs.start_thread(create, call)
    made = call.result()
    _pending.remove(call)
    return made


def run_to_end(client: Any, **options: Any) -> tuple[int, str]:
    """Run a container until it ends; return its exit status, and if it failed its errors.

    Unlike `containers.run` it does not follow the log, which hung with a release of Podman if the
    container had ended (testcontainers-rs, issue 299).
    """
    container = client.containers.create(**options)
    container.start()
    status = container.wait(timeout=programs.answer_seconds())["StatusCode"]
    printed = container.logs(stdout=False, stderr=True).decode(errors="replace").strip() if status else ""
    remove_container(container)
    return status, printed


def remove_all(client: Any, label: RunLabel, problems: list[str], remove: Callable[[], object]) -> None:
    """Call `remove`, which removes what the run created in Docker.

    What is left is reported in `problems`, once.
    """
    import docker
    import requests

    interrupts.disable_interrupts()
    futures.wait(_pending, PING_SECONDS)
    if problems:
        return
    if not answers(client):
        problems.append(f"the Docker daemon at {address()} does not answer: {leftover_message(label)}")
        return
    try:
        remove()
    except (RequestError, docker.errors.DockerException, requests.exceptions.RequestException) as error:
        problems.append(f"Docker did not remove everything ({error}): {leftover_message(label)}")


def leftover_message(label: RunLabel) -> str:
    return (
        f"what the run created there ({label.name('*')}) remains; run `hvscale cleanup` when the daemon answers again"
    )


def abandoned_containers(client: Any) -> list[Any]:
    """Containers whose controllers no longer run."""
    listed = client.containers.list(all=True, filters={"label": RUN}, ignore_removed=True)
    abandoned = [container for container in listed if not RunLabel.read(container.labels).is_live]
    return [container for container in abandoned if still_exists(container)]


def still_exists(thing: Any) -> bool:
    """Whether a listed container or network still exists; its controller may have removed
    it since.
    """
    import docker

    try:
        thing.reload()
    except docker.errors.NotFound:
        return False
    return True


def remove_container(container: Any) -> None:
    """Kill and remove a container; does nothing if it no longer exists."""
    import docker

    with suppress(docker.errors.NotFound):
        try:
            container.remove(force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code != REMOVAL_IN_PROGRESS:
                raise
            container.wait(condition="removed", timeout=REMOVAL_SECONDS)


def timeout_message(request: str) -> str:
    return (
        f"the Docker daemon at {address()} has not answered {request} within {programs.answer_seconds():g} s: "
        f"check its log, or allow more time with {programs.ANSWER_VARIABLE}=SECONDS"
    )


def request_name(error: Exception) -> str:
    """The method and path of the request that failed, as in `POST /v1.41/containers/ID/start`."""
    request = getattr(error, "request", None)
    return f"{request.method} {request.path_url.partition('?')[0]}" if request else "a request"


def connection_error(error: Exception) -> str:
    import requests

    if "Permission denied" in str(error):
        return f"{address()} is not accessible to this user: join the group docker (`usermod -aG docker NAME`), then log in again"
    if isinstance(error.__cause__, requests.exceptions.Timeout):
        return timeout_message(request_name(error.__cause__))
    return (
        f"the Docker daemon does not answer at {address()}: start it (`systemctl start docker`, or `dockerd` as root), "
        "or set DOCKER_HOST to its address"
    )
