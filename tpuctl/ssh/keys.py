"""The ed25519 key pair that this machine logs in to workers with; made once, kept in the state directory."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

PRIVATE_NAME = "ssh_ed25519"
COMMENT = "tpuctl"


class KeyPair(Struct, frozen=True):
    """`public_line` is `ssh-ed25519 AAAA… tpuctl`, as `ssh-keys` metadata wants it behind `USER:`."""

    private_path: Path
    public_line: str


def private_key_path(state_dir: Path) -> Path:
    """Where the private key is, or will be."""
    return state_dir / PRIVATE_NAME


def ensure_keypair(state_dir: Path) -> KeyPair:
    """The key pair in `state_dir`, made if missing; two processes at once end up with the same one."""
    path = private_key_path(state_dir)
    if not path.exists():
        _generate(path)
    return KeyPair(path, _public_line(path))


def _generate(path: Path) -> None:
    import tempfile

    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    temp = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temp, path)
    except FileExistsError:
        return  # another process was first; its key is the key
    finally:
        temp.unlink()


def _public_line(path: Path) -> str:
    from cryptography.hazmat.primitives import serialization

    from tpuctl.errors import BadConfigError

    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, OSError) as error:
        raise BadConfigError(
            f"cannot read the SSH key {path}: {error}",
            hint=f"move {path} away; the next command makes a new key, which hosts accept after a pass",
        ) from error
    text = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{text.decode()} {COMMENT}"
