"""A damaged cache directory: block files, the index, the lists of users."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import bytewise
import hostile
import numpy as np
import xxhash

from forebay.data.cache.block_file import BadBlock, map_block
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.transform.block import Block
from forebay.errors import ForebayError
from forebay.runtime.metrics import Counters

KEYS = [f"{number:x}" * 40 for number in range(1, 5)]
NEW_KEY = "f" * 40
QUOTA_BYTES = 16 << 20
COLUMNS = [
    ("boots", "id"),
    *(("datasets", name) for name in ("name", "blocks", "bytes", "created_at", "hits")),
    *(("blocks", name) for name in ("key", "dataset", "bytes")),
]


def block_of(seed: int) -> Block:
    rng = np.random.default_rng(seed)
    return Block.of(
        {"x": rng.random((50, 3), dtype=np.float32), "ids": rng.integers(9, size=50), "label": rng.random(50) < 0.5}
    )


class Cached:
    """Every case starts from the same directory with four blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._root = folder, folder / "cache"
        self._mark = folder / "mark"
        self._mark.unlink(missing_ok=True)
        self._blocks = {key: block_of(number) for number, key in enumerate(KEYS)}
        shutil.rmtree(self._root, ignore_errors=True)
        cache = DiskCache(self._root, quota_bytes=QUOTA_BYTES, min_free_bytes=0)
        for number, (key, block) in enumerate(self._blocks.items()):
            cache.put(key, f"data-{number % 2}", block)
        self._whole = {path: path.read_bytes() for path in self._root.rglob("*") if path.is_file()}

    def run(self, rng: np.random.Generator) -> tuple[str, str]:
        self._restore()
        kinds = (self._damaged_block, self._forged_block, self._damaged_index, self._changed_row, self._planted,
                 self._damaged_note)  # fmt: skip
        name, outcome = kinds[int(rng.integers(len(kinds)))](rng)
        assert not self._mark.exists(), "something that was read has run"
        return name, outcome

    def _restore(self) -> None:
        for path in self._root.rglob("*"):
            if path not in self._whole and not path.is_dir():
                path.unlink()
        for path, content in self._whole.items():
            if not path.exists() or path.read_bytes() != content:
                path.unlink(missing_ok=True)
                path.write_bytes(content)

    def _damaged_block(self, rng: np.random.Generator) -> tuple[str, str]:
        key = KEYS[int(rng.integers(4))]
        path = self._root / "blocks" / f"{key}.block"
        damage = bytewise.ALL[int(rng.integers(len(bytewise.ALL)))]
        content = damage(rng, self._whole[path])
        path.write_bytes(content)
        with contextlib.suppress(BadBlock):
            read_all(map_block(path, key, verify=False))
        return f"block: {damage.__name__}", self._use(KEYS)

    def _forged_block(self, rng: np.random.Generator) -> tuple[str, str]:
        """Write a block with a wrong header and a matching checksum."""
        key = KEYS[0]
        path = self._root / "blocks" / f"{key}.block"
        whole = self._whole[path]
        length = int.from_bytes(whole[8:16], "little")
        header = hostile.change_json(rng, whole[16 : 16 + length])
        front = whole[:8] + len(header).to_bytes(8, "little") + header
        body = front + bytes(-len(front) % 64) + whole[-(-(16 + length) // 64) * 64 : -16]
        path.write_bytes(body + xxhash.xxh3_128(body).digest())
        with contextlib.suppress(BadBlock):
            read_all(map_block(path, key, verify=True))
        return "block: another header, with its checksum", self._use(KEYS[1:])

    def _damaged_index(self, rng: np.random.Generator) -> tuple[str, str]:
        path = self._root / "index" / "accounts.db"
        if rng.random() < 0.2:
            path.with_name("accounts.db-journal").write_bytes(bytewise.flip_bits(rng, self._whole[path]))
            return "index: a journal from nowhere", self._use(KEYS)
        damage = bytewise.ALL[int(rng.integers(len(bytewise.ALL)))]
        path.write_bytes(damage(rng, self._whole[path]))
        return f"index: {damage.__name__}", self._use(KEYS)

    def _changed_row(self, rng: np.random.Generator) -> tuple[str, str]:
        """Change a value in a way that SQLite accepts: of another type, out of range, or a name of another form."""
        with contextlib.closing(sqlite3.connect(self._root / "index" / "accounts.db")) as index, index:
            table, name = COLUMNS[int(rng.integers(len(COLUMNS)))]
            values = [value for (value,) in index.execute(f"SELECT {name} FROM {table}")]
            value = values[int(rng.integers(len(values)))] if values else "x"
            damaged = bytewise.flip_bits(rng, str(value).encode())
            bomb = hostile.bomb(self._mark)
            change, argument = [
                ("?", -1),
                ("?", 5),
                ("?", 1.5),
                ("?", (1 << 63) - 1),
                ("?", damaged),
                ("CAST(? AS TEXT)", damaged),
                ("?", "../../x"),
                ("?", bomb),
                ("CAST(? AS TEXT)", bomb),
            ][int(rng.integers(9))]
            with contextlib.suppress(sqlite3.IntegrityError):
                index.execute(f"UPDATE {table} SET {name} = {change} WHERE {name} = ?", (argument, value))
            change = f"{table}.{name} = {change}"
            if rng.random() < 0.2:
                change = "another table"
                tables = ["CREATE VIEW v AS SELECT 1", "CREATE TABLE t (x)", "ALTER TABLE blocks ADD COLUMN x"]
                index.execute(str(rng.choice(tables)))
        precious = self._folder / "precious"
        precious.write_bytes(b"")
        outcome = self._use(KEYS)
        assert precious.exists(), "a row of the index had another file removed"
        return f"index row: {change}", outcome

    def _planted(self, rng: np.random.Generator) -> tuple[str, str]:
        """Put a pickle in the place of one of our files."""
        paths = [path for path in self._whole if path.suffix in {".block", ".db"}]
        path = paths[int(rng.integers(len(paths)))]
        path.write_bytes(hostile.bomb(self._mark, protocol=int(rng.integers(6))))
        return f"pickle in {path.parent.name}/", self._use(KEYS)

    def _damaged_note(self, rng: np.random.Generator) -> tuple[str, str]:
        cache = DiskCache(self._root, quota_bytes=QUOTA_BYTES, min_free_bytes=0)
        with contextlib.closing(_Released(cache.lease("data-0"))):
            notes = list((self._root / "users").glob("*.json"))
            for note in notes:
                damage = bytewise.ALL[int(rng.integers(len(bytewise.ALL)))]
                if rng.random() < 0.5:
                    note.write_bytes(hostile.change_json(rng, note.read_bytes()))
                else:
                    note.write_bytes(damage(rng, note.read_bytes()))
            users = cache.users()
            assert all(isinstance(user.name, str) and isinstance(user.pid, int) for user in users)
            cache.datasets()
        return "note of a user", f"{self._use(KEYS)}, {len(users)} listed"

    def _use(self, keys: list[str]) -> str:
        """Use the directory: whatever was done to it, every block that it returns is right."""
        try:
            return self._use_once(keys)
        except ForebayError as error:
            return f"refused: {type(error).__name__}"

    def _use_once(self, keys: list[str]) -> str:
        counters = Counters()
        cache = DiskCache(self._root, quota_bytes=QUOTA_BYTES, min_free_bytes=0)
        missing = 0
        for key in keys:
            block = cache.get(key, counters)
            missing += block is None
            assert block is None or same(block, self._blocks[key]), f"block {key} is another one"
        assert missing == counters["quarantined"], "a whole block is gone"
        new = cache.put(NEW_KEY, "data-0", block_of(9))
        assert new is None or same(new, block_of(9))
        cache.datasets()
        cache.verify()
        assert cache.used_bytes > 0
        cache.clear("data-1")
        cache.clear()
        return f"{len(keys) - missing} of {len(keys)} blocks, {'stored' if new else 'not stored'}"


class _Released:
    def __init__(self, lease: object) -> None:
        self._lease = lease

    def close(self) -> None:
        self._lease.release()


def same(left: Block, right: Block) -> bool:
    return left.schema == right.schema and all(
        left.arrays[name].tobytes() == right.arrays[name].tobytes() for name in left.arrays
    )


def read_all(block: Block) -> int:
    return sum(len(array.tobytes()) for array in block.arrays.values())
