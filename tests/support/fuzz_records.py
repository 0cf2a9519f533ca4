"""Records, fleet files and settings with something wrong in them, as another version, another tool or a disk
may have written them. A seed decides what."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

LEAVES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -1e308, 10**400, 253402300800.0, float("nan"), float("inf"), "", "x", "\x1b[31m",
    "a\nb", "../../etc", "9999999d", "99999-01-01", "\ud800", "y" * 5000, "٣", [], {}, [None], {"": ""},
    {"a": {"a": []}},
)  # fmt: skip
TEXTS = ("", "{", "null", "[]", "{}", '"x"', "[" * 5000, '{"a":' * 5000, "\x00", "{not json")
FLEET: Mapping[str, Any] = {
    "settings": {"zone": "us-central2-b", "project": "sim-project"},
    "fleet": {
        "name": "lab",
        "slices": {
            "big": {"accelerator": "v4-8", "tier": "spot", "pay": True, "ttl": "8h", "label": {"team": "a"}},
            "two": {
                "accelerator": "v4-16",
                "zone": ["us-central2-b"],
                "disk": ["data:/mnt/data"],
                "env": "demo-cpu",
            },
            "three": {
                "accelerator": "v4-8",
                "mount": ["gs://sim-bucket:/mnt/b:train,ttl=0"],
                "metadata": {"a": "b"},
            },
        },
        "runs": {
            "r2": {
                "on": "big",
                "script": "a",
                "no_checkpoint": True,
                "var": {"SEED": 1},
                "tag": ["b"],
                "stall": "15m",
            },
            "r3": {"on": "two", "command": ["sh", "-c", "true"], "worker": "0", "policy": {"max_failures": 1}},
        },
    },
}
SETTINGS: Mapping[str, Any] = {
    "settings": {
        "zone": ["us-central2-b"], "project": "sim-project", "label": "L", "tier": "spot", "user": "me",
        "accelerator": "v4-8", "login_user": "tpuctl", "env": "demo-cpu", "ssh_port": 22,
        "bundle_limit_mib": 50, "iap": False, "prune_after_days": 14, "require_data": False,
        "replace_after": "5m", "token_file": "a", "host_keys": "pinned", "ping_url": "https://localhost/",
        "jump_host": "me@localhost", "wheelhouse": "gs://sim-bucket/x",
    },
}  # fmt: skip


def craft(value: Any, chance: random.Random) -> Any:
    """`value` with one thing in it replaced, removed or added; often not on the top."""
    if isinstance(value, Mapping) and value and chance.random() < 0.9:
        changed: dict[Any, Any] = dict(value)
        key = chance.choice(sorted(changed))
        how = chance.random()
        if how < 0.1:
            del changed[key]
        elif how < 0.15:
            changed[chance.choice(("", "x", "\x1b[31m", "name "))] = chance.choice(LEAVES)
        else:
            changed[key] = craft(changed[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], craft(value[at], chance), *value[at + 1 :]]
    return chance.choice(LEAVES)


def craft_fleet(path: Path, seed: int) -> None:
    """Writes a fleet file in which something is wrong."""
    _write(path, craft(FLEET, random.Random(seed)))


def craft_settings(path: Path, seed: int) -> None:
    """Writes settings of a user in which something is wrong."""
    _write(path, craft(SETTINGS, random.Random(seed)))


def craft_store(path: Path, seed: int) -> str:
    """Damages one record of a store; returns its key."""
    chance = random.Random(seed)
    with closing(sqlite3.connect(path)) as db, db:
        rows = sorted(db.execute("SELECT key, data FROM documents"))
        kinds = sorted({key.split("/")[0] for key, _ in rows})
        kind = chance.choice(kinds)
        key, data = chance.choice([row for row in rows if row[0].startswith(kind)])
        other = json.dumps(craft(json.loads(data), chance))
        text = chance.choice(TEXTS) if chance.random() < 0.2 else other
        db.execute("UPDATE documents SET data = ? WHERE key = ?", (text, key))
    return str(key)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, allow_unicode=False), "utf-8", errors="replace")
