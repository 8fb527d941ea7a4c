"""TFRecord files: framed records, of which each is a `tf.train.Example`, read and written without TensorFlow.

A frame is the length of a record (8 bytes), the masked CRC-32C of that (4), the record, and its masked CRC-32C (4), all
little-endian. An Example is a map from names to lists of bytes, of 32-bit floats or of 64-bit integers. Protocol
Buffers' own parser, which Ray brings, reads it: it is in C, and made for bytes that cannot be trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

from curate.errors import CorruptInput
from curate.objects.stream import DecompressedStream, buffered

LARGEST_RECORD_BYTES = (1 << 31) - 1
"""Of a message of Protocol Buffers."""
WRONG_CHECKSUM = "the checksum of the record is wrong"
_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_MASK = 0xA282EAD8

_PROTO = """
name: "curate/example.proto" package: "curate" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".curate.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".curate.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".curate.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  field {
    name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".curate.Features.FeatureEntry"
  }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".curate.Feature" }
  }
}
message_type {
  name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".curate.Features" }
}
"""


@cache
def example_class() -> Any:
    """Returns the class of an Example: as TensorFlow defines it, in a pool of its own, apart from TensorFlow's."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()).SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("curate.Example"))


def frame(record: bytes) -> bytes:
    """Returns a record as it lies in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, _TAIL.pack(_masked(length)), record, _TAIL.pack(_masked(record))))


def _masked(data: bytes) -> int:
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def framed(source: DecompressedStream) -> Iterator[tuple[bytes, bool]]:
    """Yields the records of a file, each with whether its checksum is right.

    Raises CorruptInput where nobody knows where the next record begins: a wrong length, and an end within a record.
    """
    stream = buffered(source)
    number = 0
    while head := stream.read(_HEAD.size):
        number += 1
        if len(head) == _HEAD.size:
            length, crc = _HEAD.unpack(head)
            if crc != _masked(head[:8]) or length > LARGEST_RECORD_BYTES:
                raise CorruptInput(
                    f"{source.uri}: record {number:,} has no length that can be read; not a TFRecord file, damaged, or "
                    "compressed (then its name has to end in .gz)"
                )
            data = stream.read(length + _TAIL.size)
            if len(data) == length + _TAIL.size:
                record = data[: -_TAIL.size]
                yield record, _TAIL.unpack(data[-_TAIL.size :])[0] == _masked(record)
                continue
        raise CorruptInput(f"{source.uri}: ends within record {number:,}")
