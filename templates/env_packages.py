"""Prints what the interpreter that runs it has: its version and folder, its packages, and where those came from
that are of no index.

Python 3.8, standard library.
"""

import importlib.metadata
import json
import platform
import sys

packages, sources = {}, {}
for each in importlib.metadata.distributions():
    name, url = each.metadata["Name"], each.read_text("direct_url.json")
    if name and name not in packages:
        packages[name] = each.version
        if url:
            sources[name] = json.loads(url).get("url", "")
minor = ".".join(platform.python_version_tuple()[:2])
print(json.dumps({"python": minor, "packages": packages, "sources": sources, "prefix": sys.prefix}))
