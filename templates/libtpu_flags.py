"""Loads the `libtpu.so` of its argument, which reads its flags from LIBTPU_INIT_ARGS.

Calls PJRT_Plugin_Initialize, whose place in the table the PJRT C API fixes
(https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api.h). With a bad flag it never returns. It
returns an error, and has looked at no flag, where another process has /tmp/libtpu_lockfile (measured).
"""

import ctypes
import sys


class Arguments(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p)]


try:
    library = ctypes.CDLL(sys.argv[1])
    library.GetPjrtApi.restype = ctypes.c_void_p
except (OSError, AttributeError) as error:
    print("CANNOT LOAD", error)
    sys.exit(0)
table = ctypes.cast(library.GetPjrtApi(), ctypes.POINTER(ctypes.c_void_p))
arguments = Arguments(ctypes.sizeof(Arguments), None)
initialize = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(table[8])
error = initialize(ctypes.addressof(arguments))
print("NOT ASKED" if error else "ACCEPTED")
