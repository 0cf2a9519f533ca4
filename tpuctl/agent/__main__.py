"""The host side of tpuctl; Python 3.8 standard library.

It travels as a zip archive, and `install.py` in it unpacks it beside itself. From then on `python3 -I -S -c ...
FOLDER VERB` runs the unpacked modules, of which Python keeps what it compiled: an archive is compiled anew at
every start.

Reads one JSON line (the request) and, for `lacks`, `receive` and `send`, raw content from stdin. Answers one
JSON line on stdout and exits 0, or `{"error": code, "message": text}` and exits 1; lines with `progress` may
come before. `follow`, `read`, `news`, `send` and `session` answer with raw bytes; the requests of `session` and
`feed` are made of words and lines (see there).

It writes below ~/.tpuctl (directories 0700, files 0600, temp file + fsync + rename), and secrets to files in
memory. It never writes the environment of a run, which may hold secrets, to disk or into an argument list, and
never signals a process that does not descend from the supervisor or session that started it.
"""

import sys

from entry import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
