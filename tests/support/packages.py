"""A package repository as Google's, in a folder: signed, with one version of gcsfuse in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from platform import freedesktop_os_release

from tests.support.require import require_tool

_CONTROL = """Package: gcsfuse
Version: {version}
Architecture: {architecture}
Maintainer: nobody <nobody@example.com>
Description: gcsfuse, packed for a test
"""
_PROGRAM = """#!/bin/sh
case $1 in --version) echo "gcsfuse version {version} (Go version go1.26)"; exit ;; esac
exec "$(dirname "$(readlink -f "$0")")/../lib/gcsfuse/gcsfuse" "$@"
"""
"""What is built by `go install` says no version."""


def build_package(folder: Path, program: str, version: str) -> Path:
    """A .deb with gcsfuse, below `folder`. Skips without dpkg-deb."""
    tool = require_tool("dpkg-deb")
    tree = folder / "tree"
    for name in ("DEBIAN", "usr/bin", "usr/lib/gcsfuse"):
        (tree / name).mkdir(parents=True)
    architecture = _output("dpkg", "--print-architecture").strip()
    (tree / "DEBIAN/control").write_text(_CONTROL.format(version=version, architecture=architecture))
    shutil.copyfile(program, tree / "usr/lib/gcsfuse/gcsfuse")
    (tree / "usr/bin/gcsfuse").write_text(_PROGRAM.format(version=version))
    for name in ("usr/bin/gcsfuse", "usr/lib/gcsfuse/gcsfuse"):
        (tree / name).chmod(0o755)
    made = folder / f"gcsfuse_{version}_{architecture}.deb"
    subprocess.run([tool, "-Znone", "--root-owner-group", "-b", str(tree), str(made)], check=True)
    shutil.rmtree(tree)
    return made


def build_repository(folder: Path, package: Path, version: str) -> Path:
    """Signs `package` in a repository below `folder`; where the package lies there. Skips without gpg."""
    gpg = [require_tool("gpg"), "--batch", "--homedir", str(folder / "gpg"), "--passphrase", ""]
    (folder / "gpg").mkdir(mode=0o700)
    suite = f"gcsfuse-{freedesktop_os_release()['VERSION_CODENAME']}"
    architecture = _output("dpkg", "--print-architecture").strip()
    repository = folder / "apt"
    index = repository / "dists" / suite / "main" / f"binary-{architecture}" / "Packages"
    for each in (index.parent, repository / "doc", repository / "pool"):
        each.mkdir(parents=True)
    kept = repository / "pool" / package.name
    shutil.copyfile(package, kept)
    digest, size = hashlib.sha256(kept.read_bytes()).hexdigest(), kept.stat().st_size
    control = _CONTROL.format(version=version, architecture=architecture)
    index.write_text(f"{control}Filename: pool/{kept.name}\nSize: {size}\nSHA256: {digest}\n")
    listed = index.read_bytes()
    line = f" {hashlib.sha256(listed).hexdigest()} {len(listed)} main/binary-{architecture}/Packages"
    plain = folder / "Release"
    head = f"Suite: {suite}\nCodename: {suite}\nComponents: main\nArchitectures: {architecture}"
    plain.write_text(f"{head}\nDate: {_output('date', '-Ru').strip()}\nSHA256:\n{line}\n")
    subprocess.run([*gpg, "--quick-gen-key", "repository", "rsa2048", "sign", "never"], check=True)
    signed = repository / "dists" / suite / "InRelease"
    subprocess.run([*gpg, "-o", str(signed), "--clearsign", str(plain)], check=True)
    subprocess.run([*gpg, "--armor", "-o", str(repository / "doc/apt-key.gpg"), "--export"], check=True)
    # Its agent would live on; it removes its own files, perhaps later.
    subprocess.run(["gpgconf", "--homedir", str(folder / "gpg"), "--kill", "all"], check=True)
    for at, _, names in os.walk(repository):
        Path(at).chmod(0o755)
        for name in names:
            (Path(at) / name).chmod(0o644)
    return kept


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
