"""A node's network cut, a container killed, and the connection to the Docker daemon lost."""

import json
import os
import subprocess
from contextlib import suppress

from fault_classes import FAULTS, FaultClass
from fault_classes._originals import TRAIN, put_programs
from fault_classes._try import Running, Try, has_lines, wait_for
from hvscale.core.errors import EXIT_RANK_FAILED
from tests.system import services

STALL_SECONDS = 5
LONGEST_PAUSE = 1.0


def wait_for_steps(one: Try, running: Running, lines: int) -> None:
    file = one.folder / "job/steps.jsonl"
    wait_for(lambda: has_lines(file, lines), running)
    one.pause(LONGEST_PAUSE)


def nodes(one: Try) -> list[str]:
    """Return the names of the job's nodes; empty if it has not got so far."""
    with suppress(OSError, ValueError, KeyError):
        return [str(node["name"]) for node in json.loads((one.folder / "job/run.json").read_text())["nodes"]]
    return []


def cut_network(one: Try) -> None:
    """Take down a node's interface in a training: the ranks end it after the stall time-out."""
    put_programs(one.folder, one.original)
    steps = ("--steps", 10**6, "--checkpoint-every", 0, "--stall-timeout", STALL_SECONDS)
    launch = ("launch", "-np", 2, "--placement", "netns", "--nodes", 2, "--run", "job", "--")
    with one.cleaned():
        running = one.start(*launch, "hvscale", "train", "small_net:net", *TRAIN, *steps)
        wait_for_steps(one, running, one.random.randrange(1, 20))
        node = one.random.randrange(2)
        one.disturbance = f"the network of node {node} cut"
        for name in nodes(one)[node : node + 1]:
            subprocess.run(["ip", "-n", name, "link", "set", "eth0", "down"], capture_output=True, check=True)
        one.judge(running, (EXIT_RANK_FAILED,))


def started_in_containers(one: Try, daemon: str | None = None) -> Running:
    """Start a job in containers and wait for a random moment after the ranks' start."""
    put_programs(one.folder, one.original)
    environment = {"DOCKER_HOST": daemon} if daemon else {}
    launch = ("launch", "-np", 2, "--placement", "docker:rank", "--run", "job", "--")
    running = one.start(*launch, "sh", "-c", "echo begun; exec ./steady 300 -1", forked=False, **environment)
    log = one.folder / "job/logs/rank-00001.log"
    wait_for(lambda: log.exists() and "begun" in log.read_text(), running)
    one.pause(LONGEST_PAUSE)
    return running


def kill_container(one: Try) -> None:
    """Kill or remove a container: the job ends and names it."""
    with one.cleaned():
        running = started_in_containers(one)
        how, node = one.random.choice([["kill"], ["rm", "--force"], ["stop", "--time", "1"]]), one.random.randrange(2)
        one.disturbance = f"docker {how[0]} of container {node}"
        for name in nodes(one)[node : node + 1]:
            subprocess.run(["docker", *how, name], capture_output=True, check=True)
        one.judge(running, (EXIT_RANK_FAILED,))


def lose_daemon(one: Try) -> None:
    """Cut the connection to the daemon: the job ends; `hvscale cleanup` removes its containers."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    with one.cleaned(), services.relayed_daemon(address, one.folder) as (relayed, relay):
        running = started_in_containers(one, relayed)
        one.disturbance = "the connection to the Docker daemon cut"
        relay.kill()
        one.judge(running, (EXIT_RANK_FAILED,))


def why_no_containers() -> str | None:
    """Return None if a Docker daemon runs here and has the image."""
    address = services.running_daemon()
    if address is None:
        return "no Docker daemon runs (DOCKER_HOST)"
    images = ["docker", "--host", address, "image", "inspect", "hvscale:base"]
    if subprocess.run(images, capture_output=True).returncode:
        return "the Docker daemon has no image: hvscale image build"
    return None


FAULTS.register("cut-network", FaultClass(cut_network, tries=6, sample=0, why_not=services.why_no_namespaces))
FAULTS.register("killed-container", FaultClass(kill_container, tries=12, sample=0, why_not=why_no_containers))
FAULTS.register("lost-daemon", FaultClass(lose_daemon, tries=4, sample=0, why_not=why_no_containers))
