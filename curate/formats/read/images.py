"""Images, decoded by pillow: one row a file, an array of height x width x bands numbers from 0 to 255. One that has
other numbers is a bad row: pillow makes 255 of all above, and leaves fractions out. Of colours of 16 bits, it has the
upper eight.

Images of one size are tensors (Arrow's fixed_shape_tensor: numpy sees one array of all images). Those that keep their
own sizes are lists of rows of pixels, a tenth as fast in numpy and pandas. Images of one band have no last dimension.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from curate.errors import ConfigError, refuse_other
from curate.formats.encoding import ReadAs
from curate.formats.file_slice import FileSlice
from curate.formats.read.binary import stored_bytes
from curate.imports import need
from curate.objects.bad_line import OnBadRow, RejectedRow

BANDS = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3, "LAB": 3}
"""Modes of pillow whose values are bytes, and how many there are of a pixel."""
REASON = "not an image that can be read"
_WIDE = ("I", "F")
"""What modes of pillow begin with whose values are no bytes."""


class TooWide(ValueError):
    """An image has numbers that bytes do not hold; the message is the reason."""


def check_image(size: tuple[int, int] | None, mode: str) -> None:
    """Raises ConfigError for a mode or a size that images cannot have, and if pillow is not installed."""
    need("PIL", "read_images needs pillow", "images")
    refuse_other("read_images: mode", mode, BANDS)
    pair = isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(one, int) and one > 0 for one in size)
    if size is not None and not pair:
        raise ConfigError(f"read_images: size is {size!r}, expected (height, width), both at least 1")


def image_schema(how: ReadAs) -> pa.Schema:
    """Returns the column `image`."""
    return pa.schema([pa.field("image", image_type(how))])


def read_image(file: FileSlice, schema: pa.Schema, on_bad_row: OnBadRow) -> Iterator[pa.Table]:
    """Yields the image as one row of `schema`; one that cannot be read is a bad row.

    Raises CorruptInput if the object is gone, was replaced, or is larger than 2 GiB.
    """
    data = stored_bytes(file)
    how = file.how
    assert how is not None
    try:
        array = decoded_image(data, how)
    except TooWide as error:
        on_bad_row(RejectedRow(1, str(error), file.uri))
        return
    except Exception:  # noqa: BLE001 - decoders raise whatever a broken file leads them into
        on_bad_row(RejectedRow(1, REASON, file.uri))
        return
    yield pa.Table.from_arrays([array], schema=schema)


def decoded_image(data: bytes, how: ReadAs) -> pa.Array:
    """Returns an image as an array of one value. Raises whatever a broken one leads its decoder into."""
    return _array(_pixels(data, how), how)


def _pixels(data: bytes, how: ReadAs) -> np.ndarray[Any, Any]:
    from PIL import Image

    with warnings.catch_warnings():
        # That an image is large is no news here; twice as large is an error.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data)) as opened:
            if opened.mode.startswith(_WIDE):
                _refuse_wide(opened.mode, np.asarray(opened))
            image = opened.convert(how.image_mode)
    if how.image_size is not None:
        height, width = how.image_size
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _refuse_wide(mode: str, pixels: np.ndarray[Any, Any]) -> None:
    with np.errstate(invalid="ignore"):
        held = np.array_equal(pixels, pixels.astype(np.uint8))
    if not held:
        raise TooWide(
            f"its pixels are numbers that 8 bits do not hold (mode {mode} of pillow): write it with 8 bits, or read "
            "its bytes and decode them yourself"
        )


def _shape(how: ReadAs) -> tuple[int, ...]:
    """Returns the dimensions of a pixel: none where it is one number."""
    bands = BANDS[how.image_mode]
    return () if bands == 1 else (bands,)


def image_type(how: ReadAs) -> pa.DataType:
    """Returns the type of images."""
    pixel = pa.uint8()
    for bands in _shape(how):
        pixel = pa.list_(pixel, bands)
    if how.image_size is None:
        return pa.list_(pa.list_(pixel))
    return pa.fixed_shape_tensor(pa.uint8(), (*how.image_size, *_shape(how)))


def _array(pixels: np.ndarray[Any, Any], how: ReadAs) -> pa.Array:
    flat = pa.array(pixels.reshape(-1))
    if how.image_size is not None:
        storage = pa.FixedSizeListArray.from_arrays(flat, math.prod(pixels.shape))
        return pa.ExtensionArray.from_storage(image_type(how), storage)
    for bands in _shape(how):
        flat = pa.FixedSizeListArray.from_arrays(flat, bands)
    height, width = pixels.shape[:2]
    rows = pa.ListArray.from_arrays(pa.array(np.arange(height + 1) * width, pa.int32()), flat)
    return pa.ListArray.from_arrays(pa.array([0, height], pa.int32()), rows)
