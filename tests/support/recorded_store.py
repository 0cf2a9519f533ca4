"""The store of an earlier version in `tests/data/store`, laid where commands of today find it."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
import urllib.request
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from google.oauth2.credentials import Credentials

from tests.support.session import ROOT, Session
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.ssh.keys import ensure_keypair

FOLDER = ROOT / "tests" / "data" / "store"
RECORDED: Mapping[str, Any] = json.loads((FOLDER / "recorded.json").read_text())
BUCKET = "gs://sim-bucket/lab"
_MOMENT = re.compile(r"(?<![\d.])179534\d{4}(?:\.\d+)?(?![\d.])")
"""Seconds since the epoch within the hours of the recording."""
_TIME = re.compile(r"2026-11-22T\d\d:\d\d:\d\d(?=Z)")


class RecordedStore:
    """Gives `session`, whose simulator is empty, the recorded store and cloud, as if they were of just now."""

    def __init__(self, session: Session, kind: str) -> None:
        self._session = session
        self._state = session.root / "state" / "sim"
        self._age_s = int(time.time() - RECORDED["at"])
        session.environ["TPUCTL_USER"] = "tester"
        (session.root / "state" / "machine").write_text(RECORDED["machine"])
        for name, text in RECORDED["work"].items():
            (session.work / name).write_text(text)
        key = ensure_keypair(session.root / "state").public_line.split()[1]
        self._today = {RECORDED["public_key"]: key}
        self._today |= self._make_cloud()
        if kind == "sqlite":
            self._write_sqlite()
        else:
            self._write_bucket()

    def today(self, text: str) -> str:
        """Recorded text as if it were of just now: moments, and the ids of nodes."""
        text = _MOMENT.sub(lambda found: repr(float(found[0]) + self._age_s), text)
        moved = timedelta(seconds=self._age_s)
        text = _TIME.sub(lambda found: (datetime.fromisoformat(found[0]) + moved).isoformat(), text)
        for then, now in self._today.items():
            text = text.replace(then, now)
        return text

    def documents(self) -> dict[str, Any]:
        """What is in the store now, without the journal."""
        from tpuctl.state.bucket import BucketStore
        from tpuctl.state.sqlite import SqliteStore

        path = self._folder / "store.sqlite"
        if path.exists():
            store: Any = SqliteStore(path)
        else:
            store = BucketStore(self._objects(), BUCKET, self._session.root / "cache", sleep=time.sleep)
        try:
            found = {document.key: dict(document.data) for document in store.list("")}
        finally:
            store.close()
        return {key: data for key, data in found.items() if not key.startswith("journal/")}

    @property
    def _folder(self) -> Path:
        return self._state / "sim-project"

    @property
    def _profile(self) -> dict[str, Any]:
        return dict(json.loads((self._state / "profile.json").read_text()))

    def _token(self) -> str:
        return (self._state / "token").read_text().strip()

    def _objects(self) -> GoogleObjects:
        return GoogleObjects("sim-project", self._profile["endpoint_storage"], Credentials(token=self._token()))

    def _api(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self._profile['endpoint_tpu']}/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def _make_cloud(self) -> dict[str, str]:
        """What the recorded cloud had. Returns the ids of nodes then and now."""
        self._session.type("sim", "capacity", "us-central2-b=32")
        for queued in RECORDED["cloud"]["queued"]:
            parent, _, name = queued["name"].rpartition("/")
            body = json.loads(self.today(json.dumps(queued["body"])))
            self._api(f"{parent}?queuedResourceId={name}", body)
        for queued in RECORDED["cloud"]["queued"]:
            self._await_state(
                queued["name"], "WAITING_FOR_RESOURCES" if "waiting" in queued["name"] else "ACTIVE"
            )
        nodes = self._api("projects/sim-project/locations/-/nodes")["nodes"]
        found = {node["name"].rpartition("/")[2]: node["id"] for node in nodes}
        for queued in RECORDED["cloud"]["queued"]:
            if queued["state"] == "SUSPENDED":
                self._session.type("sim", "preempt", queued["name"].rpartition("/")[2])
        return {then: found[name] for name, then in RECORDED["cloud"]["nodes"].items()}

    def _await_state(self, name: str, state: str) -> None:
        deadline = time.monotonic() + 30
        while (shown := self._api(name)["state"]["state"]) != state:
            assert time.monotonic() < deadline, f"{name} is {shown}"
            time.sleep(0.1)

    def _write_sqlite(self) -> None:
        self._folder.mkdir()
        with sqlite3.connect(self._folder / "store.sqlite") as db:
            db.executescript(self.today((FOLDER / "store.sql").read_text()))
        db.close()
        for blob in (FOLDER / "blobs").iterdir():
            (self._folder / "blobs" / blob.name[:2]).mkdir(parents=True)
            shutil.copy(blob, self._folder / "blobs" / blob.name[:2])

    def _write_bucket(self) -> None:
        objects = self._objects()
        for line in (FOLDER / "bucket.jsonl").read_text().splitlines():
            item = json.loads(line)
            objects.write(f"{BUCKET}/{item['name']}", self.today(item["text"]).encode())
        for blob in (FOLDER / "blobs").iterdir():
            objects.write(f"{BUCKET}/blobs/{blob.name}", blob.read_bytes())
        self._session.environ["TPUCTL_STORE"] = BUCKET
