"""libllmq by ctypes: the functions and structs of include/llmq.h, and its errors as exceptions."""
import ctypes as c
import os
import pathlib
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent


class Error(Exception):
    """What llmq refuses or fails at. `code`: the number of include/llmq.h's llmq_code."""

    code = 0


class IOFailed(Error, OSError):
    """A file or a device of the system fails."""


class OutOfMemory(Error, MemoryError):
    """Out of memory."""


class Busy(Error):
    """Another call has what this one needs, or the queue is full."""


class DeviceFailed(Error):
    """A GPU fails or is not there."""


class UsageError(Error, ValueError):
    """An option or an argument is wrong."""


class FormatError(Error, ValueError):
    """A file is malformed."""


class ShapeError(Error, ValueError):
    """A tensor has another shape than its model's."""


class InvalidValue(Error, ValueError):
    """A value is out of range; a request asks for what cannot be."""


class Unsupported(Error):
    """A model, a format or a processor that is not supported."""


class NotFound(Error, FileNotFoundError):
    """A file, or what a file should have, is not there."""


class CheckFailed(Error):
    """A checksum says no."""


class Interrupted(Error):
    """A callback, or Ctrl-C, said stop."""


_ERRORS = [None, IOFailed, OutOfMemory, Busy, DeviceFailed, UsageError, FormatError, ShapeError, InvalidValue,
           Unsupported, NotFound, CheckFailed, Interrupted]


class ErrorText(c.Structure):
    _fields_ = [("code", c.c_int32), ("text", c.c_char * 508)]


ON_PROGRESS = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_char_p, c.c_double, c.c_double)
ON_TEXT = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(c.c_char), c.c_size_t)
ON_MESSAGE = c.CFUNCTYPE(None, c.c_void_p, c.c_int32, c.c_char_p)


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("options", c.c_char_p), ("progress", ON_PROGRESS), ("user", c.c_void_p)]


class Sampling(c.Structure):
    _fields_ = [("size", c.c_size_t), ("prompt", c.c_int32), ("ignore_eos", c.c_int32), ("max_tokens", c.c_int64),
                ("min_tokens", c.c_int64), ("temperature", c.c_double), ("top_p", c.c_double), ("min_p", c.c_double),
                ("top_k", c.c_int64), ("seed", c.c_uint64), ("repetition_penalty", c.c_double),
                ("presence_penalty", c.c_double), ("frequency_penalty", c.c_double), ("stop", c.POINTER(c.c_char_p)),
                ("n_stop", c.c_size_t)]


class Usage(c.Structure):
    _fields_ = [("size", c.c_size_t), ("finish", c.c_int32), ("reserved", c.c_int32), ("prompt_tokens", c.c_int64),
                ("cached_tokens", c.c_int64), ("output_tokens", c.c_int64)]


class Answer(c.Structure):
    _fields_ = [("size", c.c_size_t), ("id", c.c_uint64), ("status", c.c_int32), ("reserved", c.c_int32),
                ("json", c.c_void_p), ("n", c.c_size_t)]


_P, _E = c.c_void_p, c.POINTER(ErrorText)
_FUNCTIONS = {
    "llmq_abi": (c.c_int32, []),
    "llmq_version": (c.c_char_p, []),
    "llmq_free": (None, [_P]),
    "llmq_listen": (None, [ON_MESSAGE, _P]),
    "llmq_open": (c.c_int32, [c.POINTER(_P), c.c_char_p, c.POINTER(Options), _E]),
    "llmq_close": (None, [_P]),
    "llmq_generate": (c.c_int32, [_P, c.c_char_p, c.POINTER(Sampling), ON_TEXT, _P, c.POINTER(Usage), _E]),
    "llmq_submit": (c.c_int32, [_P, c.c_char_p, c.c_char_p, c.c_size_t, c.POINTER(c.c_uint64), _E]),
    "llmq_poll": (c.c_int32, [_P, c.c_uint64, c.POINTER(Answer), c.c_int64, _E]),
    "llmq_tokenize": (c.c_int32, [_P, c.c_char_p, c.c_size_t, c.c_int32, c.POINTER(_P), c.POINTER(c.c_size_t), _E]),
    "llmq_detokenize": (c.c_int32, [_P, c.POINTER(c.c_int32), c.c_size_t, c.c_int32, c.POINTER(_P),
                                    c.POINTER(c.c_size_t), _E]),
    "llmq_embed": (c.c_int32, [_P, c.c_char_p, c.c_size_t, c.POINTER(_P), c.POINTER(c.c_size_t), _E]),
    "llmq_logits": (c.c_int32, [_P, c.POINTER(c.c_int32), c.c_size_t, c.c_int32, c.POINTER(_P),
                                c.POINTER(c.c_size_t), _E]),
    "llmq_quantize": (c.c_int32, [c.c_char_p, c.c_char_p, c.c_char_p, ON_PROGRESS, _P, c.POINTER(_P), _E]),
    "llmq_convert": (c.c_int32, [c.c_char_p, c.c_char_p, c.c_char_p, ON_PROGRESS, _P, c.POINTER(_P), _E]),
}
ABI = 0


def _load():
    """$LLMQ_LIBRARY, the library in this package, or the system's."""
    own = HERE / "libllmq.so.0"
    name = os.environ.get("LLMQ_LIBRARY") or (str(own) if own.exists() else "libllmq.so.0")
    loaded = c.CDLL(name)
    for function, (result, arguments) in _FUNCTIONS.items():
        f = getattr(loaded, function)
        f.restype, f.argtypes = result, arguments
    if loaded.llmq_abi() != ABI:
        raise ImportError(f"{name}: expected ABI {ABI}, found {loaded.llmq_abi()}")
    return loaded


lib = _load()


def text_of(what, value):
    """value as C's text, which ends at its first NUL: there can be none within."""
    data = os.fsencode(value) if isinstance(value, os.PathLike) else str(value).encode()
    if b"\0" in data:
        raise ValueError(f"{what}: expected text without NUL")
    return data


def check(status, error):
    """Raise what a function has said."""
    if status:
        known = 0 < status < len(_ERRORS)
        e = (_ERRORS[status] if known else Error)(error.text.decode(errors="replace"))
        e.code = status
        raise e


def program():
    """The command `llmq`: $LLMQ_PROGRAM, what was installed with this package, or that of the path."""
    if "LLMQ_PROGRAM" in os.environ:
        return os.environ["LLMQ_PROGRAM"]
    folders = [pathlib.Path(sys.executable).parent, sysconfig.get_path("scripts"),
               sysconfig.get_path("scripts", f"{os.name}_user")]
    return next((str(pathlib.Path(f, "llmq")) for f in folders if pathlib.Path(f, "llmq").exists()), "llmq")
