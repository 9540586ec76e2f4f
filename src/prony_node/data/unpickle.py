"""Reading CIFAR's pickles without running what is in them.

A pickle is a program. This reader knows the few instructions that such a file needs and builds plain containers;
an array becomes `Array`, a type's letters and raw bytes, so that not even numpy is called.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.data.dataset import as_tensor

# Containers, strings, numbers, memory and the three that build an array. None of them can allocate
# more than the file holds, and none calls anything but what find_class hands out.
INSTRUCTIONS = b"".join(
    (
        pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.NONE,
        pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2,
        pickle.LONG1, pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING, pickle.UNICODE, pickle.BINUNICODE,
        pickle.SHORT_BINUNICODE, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.EMPTY_LIST, pickle.LIST,
        pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM, pickle.SETITEMS,
        pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.GET, pickle.BINGET,
        pickle.LONG_BINGET, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GLOBAL,
        pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD,
    )
)  # fmt: skip
BYTE_TYPES = ("u1", "B", b"u1", b"B")


class DType:
    def __init__(self, letters: object = "", *_: object) -> None:
        self.letters = letters

    def __setstate__(self, state: object) -> None:
        """Byte order and field names: nothing that a byte has."""


class Array:
    """What a pickled array states of itself."""

    shape: tuple[int, ...] = ()
    data: bytes = b""
    dtype: object = None
    by_column = False

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array in a form that is not known")
        _, self.shape, self.dtype, self.by_column, self.data = state

    def tensor(self) -> Tensor:
        """The array as uint8, if it is one and whole."""
        whole = isinstance(self.shape, tuple) and all(isinstance(side, int) and side >= 0 for side in self.shape)
        if not isinstance(self.dtype, DType) or self.dtype.letters not in BYTE_TYPES or not whole or self.by_column:
            raise RequestError("an array is not of unsigned bytes in rows")
        size = 1
        for side in self.shape:
            size *= side
        if not isinstance(self.data, bytes) or len(self.data) != size:
            raise RequestError(f"an array of shape {self.shape} does not hold as many bytes")
        return as_tensor(self.data).reshape(self.shape) if size else torch.empty(self.shape, dtype=torch.uint8)


def _reconstruct(*_: object) -> Array:
    return Array()


def _encode(text: object, encoding: object = "latin1", *_: object) -> bytes:
    """How Python 3 writes bytes in an old protocol."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("bytes in an encoding that is not known")
    return text.encode("latin1")


KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): DType,
    ("_codecs", "encode"): _encode,
}


class Restricted(pickle._Unpickler):
    """The interpreter in Python: its memory is a dictionary, which no index in the file can blow up."""

    dispatch = {code: call for code, call in pickle._Unpickler.dispatch.items() if code in INSTRUCTIONS}  # noqa: RUF012

    def _build(self) -> None:
        """State for what was made here, and for nothing else: not for the functions above."""
        if not isinstance(self.stack[-2], (Array, DType)):  # type: ignore[attr-defined]
            raise pickle.UnpicklingError("it gives state to something that has none")
        self.load_build()  # type: ignore[attr-defined]

    dispatch[pickle.BUILD[0]] = _build  # type: ignore[assignment]

    def find_class(self, module: str, name: str) -> Any:
        try:
            return KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module!r}, {name!r}") from None


def unpickle(data: bytes) -> Any:
    """The content: dicts, lists, strings as bytes, numbers and arrays. RequestError for anything else."""
    try:
        return Restricted(io.BytesIO(data), encoding="bytes").load()
    except RequestError:
        raise
    except KeyError as error:
        raise RequestError(f"it holds an instruction that a data file does not need: {error}") from error
    except Exception as error:  # an interpreter fed with noise fails in every way there is
        said = " ".join(str(error).split()) or type(error).__name__  # what the file says may hold line breaks
        raise RequestError(f"it is no pickle of plain data: {said}") from error
