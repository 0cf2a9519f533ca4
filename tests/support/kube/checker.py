"""What an API server says of custom resources: Kubernetes' and JobSet's own code in a program without a server.

It is built in a minute or two. Names, server-side apply and all that a server stores are not in it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.kube.build import CHECKER, require_kube

Object = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """The status that HTTP would have, why, and the object with defaults where it is taken."""

    status: int
    message: str = ""
    object: Object | None = None


class Checker:
    """Asks the program, one question after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, new: Object, old: Object | None = None, *, webhooks: bool = False) -> Verdict:
        """Of a creation, or of the change of an old object; `webhooks`: those of JobSet are asked, too."""
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        questions.write(json.dumps({"object": new, "old": old, "webhooks": webhooks}) + "\n")
        questions.flush()
        return Verdict(**json.loads(answers.readline()))


@contextmanager
def crd_checker() -> Iterator[Checker]:
    """With JobSet's and Kueue's kinds. Skips where it is not built."""
    built = require_kube("check")
    words = (str(built / CHECKER), *map(str, sorted((built / "yaml").glob("*/crds/*"))))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Checker(process)
        assert process.stdin is not None
        process.stdin.close()
