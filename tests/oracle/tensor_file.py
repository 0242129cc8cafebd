"""Safetensors files, written by hand: an 8-byte header length, a JSON header, raw little-endian data.

Files are deterministic (names sorted, no versions, no dates), so regenerating one gives a diff only where a value changed.
"""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(np.bool_),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I8": np.dtype(np.int8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode(tensors, metadata):
    """The bytes of a file with these tensors (name -> numpy array) and metadata (string -> string)."""
    header = {"__metadata__": dict(sorted(metadata.items()))}
    chunks, offset = [], 0
    for name, value in sorted(tensors.items()):
        value = np.asarray(value)
        data = value.tobytes()
        header[name] = {
            "dtype": NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(chunks)


def decode(data):
    """The tensors and the metadata of a file's bytes."""
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def write_or_check(path, tensors, metadata, check, tolerance=1e-6):
    """Writes the file; with `check`, compares with the one that is there and exits with an error where they differ."""
    path = Path(path)
    if not check:
        data = encode(tensors, metadata)
        path.write_bytes(data)
        print(f"{path.name}: {len(tensors)} tensors, {len(data)} bytes")
        return
    stored, stored_metadata = decode(path.read_bytes())
    if stored.keys() != tensors.keys() or stored_metadata != metadata:
        raise SystemExit(f"{path.name}: names or metadata differ from what this script makes")
    for name, value in tensors.items():
        have, want = stored[name], np.asarray(value)
        if have.dtype != want.dtype or have.shape != want.shape:
            raise SystemExit(f"{path.name}: {name} has type {have.dtype}{have.shape}, made {want.dtype}{want.shape}")
        if want.dtype == np.float32:
            # Relative to the largest finite value: the norm of the whole tensor is what a user of the file compares.
            finite = np.abs(want[np.isfinite(want)])
            atol = tolerance * finite.max() if finite.size else 0.0
            same = np.allclose(have, want, rtol=tolerance, atol=atol, equal_nan=True)
        else:
            same = np.array_equal(have.view(np.uint8), want.view(np.uint8)) if want.ndim else have == want
        if not same:
            raise SystemExit(f"{path.name}: {name} differs from what this script makes")
    print(f"{path.name}: {len(tensors)} tensors agree")
