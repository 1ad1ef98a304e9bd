"""Ways to damage a file. Each puts a damaged file, or something that is no file, in its place."""

import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path, random.Random], object]
SCALARS: tuple[Any, ...] = (
    None,
    True,
    "text",
    "",
    -1,
    0,
    1.5,
    10**30,
    1e308,
    [],
    {},
    [1, "a"],
    {"a": {}},
    "\x00\x1b[31m",
    "../../x",
)
WORDS = (0, 1, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF)
TOML_VALUES = ("nan", "-1", '"text"', "[]", "{}", "true", "99999999999999999999", "'\\x00'", "")
HEADER_BYTES = 4096  # of a binary file: damage there is found by other checks than in its records


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def flip_bits(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    end = rng.choice([len(data), min(len(data), HEADER_BYTES)])
    for _ in range(rng.choice([1, 1, 2, 8, 64]) if data else 0):
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    rewrite(path, bytes(data))


def truncate(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    rewrite(path, data[: rng.choice([0, 1, rng.randrange(len(data) + 1), max(0, len(data) - 1)])])


def overwrite_words(path: Path, rng: random.Random) -> None:
    """Replace aligned words of 4 or 8 bytes by extreme numbers."""
    data = bytearray(path.read_bytes())
    size, form = rng.choice([(4, "<I"), (8, "<Q")])
    for _ in range(rng.choice([1, 1, 4])):
        places = min(len(data), rng.choice([len(data), HEADER_BYTES])) // size
        if places:
            at = size * rng.randrange(places)
            data[at : at + size] = struct.pack(form, rng.choice(WORDS) & (1 << 8 * size) - 1)
    rewrite(path, bytes(data))


def insert_bytes(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    garbage = rng.choice([rng.randbytes(rng.choice([1, 7, 5000])), b"\xff\xfe", b"\x00" * 100, b"\n", b"[" * 100_000])
    rewrite(path, data[:at] + garbage + data[at:])


def repeat(path: Path, rng: random.Random) -> None:
    rewrite(path, path.read_bytes() * rng.choice([2, 3]))


def replace_all(path: Path, rng: random.Random) -> None:
    rewrite(path, rng.choice([b"null", b"[]", b"{}", b"1", b'"text"', b"NaN", rng.randbytes(300), b"\n" * 50]))


def change_type(path: Path, rng: random.Random) -> None:
    """Replace a value in JSON, JSON lines or TOML by one of another type or out of range."""
    text = path.read_text()
    if path.suffix == ".toml":
        lines = text.splitlines()
        places = [number for number, line in enumerate(lines) if "=" in line]
        if places:
            at = rng.choice(places)
            lines[at] = f"{lines[at].partition('=')[0]}= {rng.choice(TOML_VALUES)}"
        rewrite(path, "\n".join(lines).encode())
        return
    lines = [text] if path.suffix == ".json" else text.splitlines()
    at = rng.randrange(len(lines))
    document = json.loads(lines[at])
    replace_value(document, rng)
    lines[at] = json.dumps(document)
    rewrite(path, ("\n".join(lines) + "\n").encode())


def replace_value(document: Any, rng: random.Random) -> None:
    """Replace a random value anywhere in a document, or remove it, or add an unknown one."""
    places: list[tuple[Any, Any]] = []
    rest = [document]
    while rest:
        node = rest.pop()
        inside = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        places += [(node, key) for key, _ in inside]
        rest += [value for _, value in inside if isinstance(value, dict | list)]
    if not places:
        return
    node, key = rng.choice(places)
    how = rng.random()
    if how < 0.1:
        del node[key]
    elif how < 0.15 and isinstance(node, dict):
        node["unknown"] = node.pop(key)
    else:
        node[key] = rng.choice([*SCALARS, float("nan"), float("-inf")])


def change_version(path: Path, rng: random.Random) -> None:
    new = rng.choice(["hvscale/run/1", "hvscale/scale/99", "hvscale/other/2", "text", "hvscale/run/x"])
    text, count = re.subn(r"hvscale/[a-z-]+/\d+", new, path.read_text(errors="surrogateescape"), count=1)
    if not count:
        return overwrite_words(path, rng)
    return rewrite(path, text.encode(errors="surrogateescape"))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def fifo(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path, rng: random.Random) -> None:
    """Put a link to a device in its place: one without an end, an empty one, or the terminal."""
    path.unlink()
    path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "/dev/tty", "/dev/full", "/dev/random"]))


def link(path: Path, rng: random.Random) -> None:
    """Put a link in its place: to itself, to nothing, to a folder, to another file."""
    path.unlink()
    path.symlink_to(rng.choice([path.name, "missing", ".", "/", "/etc/passwd", "/proc/self/mem", "/proc/kmsg"]))


def folder(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "inside").write_text("x")


def nothing(path: Path, rng: random.Random) -> None:
    """Damage nothing: the commands must then succeed."""


TEXTS = (".json", ".jsonl", ".toml")
ANY: dict[str, Damage] = {
    "bit flips": flip_bits,
    "truncated": truncate,
    "extreme words": overwrite_words,
    "inserted bytes": insert_bytes,
    "repeated": repeat,
    "replaced": replace_all,
    "deleted": delete,
    "a FIFO": fifo,
    "a device": device,
    "a link": link,
    "a folder": folder,
    "other version": change_version,
    "nothing": nothing,
}
IN_TEXT: dict[str, Damage] = {"wrong type": change_type}


def mutate(root: Path, patterns: tuple[str, ...], rng: random.Random) -> tuple[str, str]:
    """Damage one file below `root` that matches a pattern. Return its path and the damage.

    Half of the damage to a JSON or TOML file is a wrong type: other damage rarely passes a parser.
    """
    found = sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})
    path = rng.choice(found)
    kinds = IN_TEXT if path.suffix in TEXTS and path.stat().st_size and rng.random() < 0.5 else ANY
    kind = rng.choice(sorted(kinds))
    kinds[kind](path, rng)
    return str(path.relative_to(root)), kind


def contents(root: Path) -> dict[str, bytes]:
    """Return the content of each regular file below `root`."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def remove(root: Path) -> None:
    """Remove a folder, whatever a try put there."""
    shutil.rmtree(root, ignore_errors=True)
