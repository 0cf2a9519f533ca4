"""`python -m tests.support.kube build [crds|cluster]`: see build.py."""

from __future__ import annotations

import sys

from tests.support.kube.build import SETS, build

match sys.argv[1:]:
    case ["build"]:
        build("cluster")
    case ["build", which] if which in SETS:
        build(which)
    case _:
        sys.exit(f"usage: python -m tests.support.kube build [{'|'.join(SETS)}]")
