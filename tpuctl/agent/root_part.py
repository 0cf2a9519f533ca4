"""The part of an operation that needs root: a module of this folder whose `main(request)` runs as root.

`rooted.run_root` starts it, through sudo where the login user is not root: arguments are the module, the
request as JSON and the seconds that it may take. The last line of its output is `{"answer": ...}`, or
`{"failed": ...}` with what `Failed` was told. Its time is kept here, for no signal of the login user's
reaches a sudo.
"""

import os
import sys

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(name, request, seconds):
    """What the module answers, or how it failed."""
    from operations import Failed
    from processes import signal

    signal.alarm(seconds)
    try:
        return {"answer": __import__(name).main(request)}
    except Failed as error:
        return {"failed": error.told()}
    except OSError as error:
        return {"failed": Failed("%s: %s" % (type(error).__name__, error)).told()}


def begin(arguments):
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    os.environ["PATH"] = PATH  # sudo may have another, without what only root needs
    os.chdir("/")  # this program keeps no file system busy
    import quick_json as json

    name, request, seconds = arguments
    found = run(name, json.loads(request), int(seconds))
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(begin(sys.argv[1:]))
