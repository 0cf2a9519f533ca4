"""SHA-256 without OpenSSL for what is small: to load that takes half as long as Python's own start. The modules
of Python's own implementation are private, so where they are missing, hashlib does it."""

import os
import sys

from client import CHUNK

OPENSSL_MIN = 1 << 19  # bytes; from here on OpenSSL, six times as fast, has caught up, once for all

try:
    from _sha2 import sha256 as small  # type: ignore[import-not-found] # since Python 3.12
except ImportError:
    try:
        from _sha256 import sha256 as small  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256 as small


def sha256(size):
    """What takes the digest of so many bytes."""
    if size < OPENSSL_MIN and "hashlib" not in sys.modules:
        return small()
    import hashlib

    return hashlib.sha256()


def file_sha256(path):
    """In hexadecimal. Raises OSError."""
    with open(path, "rb") as file:
        check = sha256(os.fstat(file.fileno()).st_size)
        for chunk in iter(lambda: file.read(CHUNK), b""):
            check.update(chunk)
    return check.hexdigest()
