import os

import torch_xla


def look(debug, trace):
    if debug:
        os.environ["PT_XLA_DEBUG_LEVEL"] = "2"
    before = os.environ.get("XLA_HLO_DEBUG", "")
    os.environ["XLA_HLO_DEBUG"] = "1"
    trace()
    os.environ["XLA_HLO_DEBUG"] = before
