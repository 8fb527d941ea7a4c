"""Whether this process can still use its GPUs.

An error on a GPU that is no mere refusal, such as an index out of range in a kernel, makes all that the process asks of
that GPU from then on fail with the same error: other batches, other shards. Only another process has the GPU again.
So the driver is asked (what it calls a context, which is the same one for PyTorch, CuPy, JAX and all else here). That
waits for what is at work on the GPU.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_DRIVER = "libcuda.so.1"
_WITHOUT_GPU = frozenset({3, 4, 100})
"""What the driver answers where nobody has used it, its process ends, or there is no GPU."""


def lost_gpu() -> str:
    """Returns what a GPU of this process answers from now on to all that it is asked; empty if it does not."""
    if (driver := _loaded_driver()) is None:
        return ""
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return next(filter(None, (_error_of(driver, number) for number in range(count.value))), "")


def _loaded_driver() -> Any:
    """Returns the library of NVIDIA's driver if something has loaded it here, else None."""
    try:
        return ctypes.CDLL(_DRIVER, mode=getattr(os, "RTLD_NOLOAD", 0))
    except OSError:
        return None


def _error_of(driver: Any, number: int) -> str:
    """Returns the name of the error that a GPU is left with, empty if it is not used, or well."""
    flags, active, context, device = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    code = driver.cuDeviceGet(ctypes.byref(device), number)
    code = code or driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    if code in _WITHOUT_GPU or not (code or active.value):
        return ""
    code = code or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if not code:
        code = driver.cuCtxPushCurrent_v2(context) or driver.cuCtxSynchronize()
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(device)
    if not code or code in _WITHOUT_GPU:
        return ""
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return name.value.decode() if name.value else f"error {code}"
