"""Places for ranks, started by the tests and taken down with them."""

from collections.abc import Iterator

import pytest

from tests.system import places


@pytest.fixture(scope="session")
def namespaces() -> None:
    if reason := places.why_no_namespaces():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Docker daemon that has the image: one that runs already, or the tests' own."""
    if address := places.running_daemon():
        places.build_image(address)
        yield address
        return
    if reason := places.why_no_docker():
        pytest.skip(reason)
    with places.docker_daemon(tmp_path_factory.mktemp("docker")) as address:
        places.build_image(address)
        yield address
