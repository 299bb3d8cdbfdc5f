"""Folders that claim to be datasets: images, labels, annotations and arrays that lie.

A builder fills a folder; each family is read as one task does it.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Builder = Callable[[Path], object]


def png(width: int = 8, height: int = 8, mode: str = "RGB", value: int = 0) -> bytes:
    target = io.BytesIO()
    Image.new(mode, (width, height), value).save(target, "PNG")
    return target.getvalue()


def claimed(width: int, height: int, data: bytes = b"", kind: int = 2, *chunks: bytes) -> bytes:
    """A PNG that is as large as its header says and has what it has."""
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = [_chunk(b"IHDR", header), *chunks, _chunk(b"IDAT", zlib.compress(data)), _chunk(b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _gray(side: int) -> bytes:
    """Zeros, from one row that is compressed again and again: quick to make."""
    packer = zlib.compressobj(1)
    row = bytes(side + 1)
    data = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = [_chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def _pairs(image: bytes | None = None, label: bytes | None = None) -> Builder:
    """Eight images with labels; one of them is this."""

    def build(folder: Path) -> None:
        for number in range(8):
            (folder / f"{number:06d}.png").write_bytes(png())
            (folder / f"{number:06d}_seg.png").write_bytes(png(mode="L"))
        if image is not None:
            (folder / "000007.png").write_bytes(image)
        if label is not None:
            (folder / "000007_seg.png").write_bytes(label)

    return build


def _instead(name: str, make: Callable[[Path], object]) -> Builder:
    def build(folder: Path) -> None:
        _pairs()(folder)
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return build


def _eps() -> bytes:
    head = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
    return head + b"(%pipe%touch owned) (w) file\n"


def _text_bomb() -> bytes:
    return claimed(
        8, 8, bytes(200), 2, *[_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26)))]
    )


SEGMENTATION: Mapping[str, Builder] = {
    "empty image": _pairs(b""),
    "no image": _pairs(b"hello"),
    "cut off": _pairs(png(64, 64)[:-30]),
    "image of 2**31": _pairs(claimed(2**31 - 1, 2**31 - 1)),
    "image of 0 × 0": _pairs(claimed(0, 0)),
    "image of 169 megapixels": _pairs(_gray(13_000)),
    "label of 169 megapixels": _pairs(label=_gray(13_000)),
    "image without pixels": _pairs(claimed(6_000, 6_000)),
    "comment that unpacks to 64 MB": _pairs(_text_bomb()),
    "PostScript": _pairs(_eps()),
    "Photoshop": _pairs(b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 8, 8, 8, 3) + bytes(12)),
    "GIF of 65535 × 65535": _pairs(b"GIF89a\xff\xff\xff\xff\x00\x00\x00;"),
    "BMP of 2**31": _pairs(
        b"BM" + bytes(12) + struct.pack("<IiiHH", 40, 2**31 - 1, 8, 1, 24) + bytes(24)
    ),
    "TIFF of 2**31": _pairs(
        b"II*\0\x08\0\0\0\x02\0"
        + struct.pack("<HHII", 256, 4, 1, 2**31)
        + struct.pack("<HHII", 257, 4, 1, 2**31)
        + bytes(4)
    ),
    "TIFF in a circle": _pairs(b"II*\0\x08\0\0\0\x00\0\x08\0\0\0"),
    "label of three channels": _pairs(label=png()),
    "label of 200": _pairs(label=png(mode="L", value=200)),
    "label of another shape": _pairs(label=png(800, 8, "L")),
    "label missing": _instead("000007_seg.png", lambda path: None),
    "image missing": _instead("000007.png", lambda path: None),
    "image a pipe": _instead("000007.png", os.mkfifo),
    "label a pipe": _instead("000007_seg.png", os.mkfifo),
    "image endless": _instead("000007.png", lambda path: path.symlink_to("/dev/zero")),
    "image a device": _instead(
        "000007.png", lambda path: os.mknod(path, 0o20666, os.makedev(1, 5))
    ),
    "image in a circle": _instead("000007.png", lambda path: path.symlink_to(path.name)),
    "image a folder": _instead("000007.png", Path.mkdir),
    "image a broken link": _instead("000007.png", lambda path: path.symlink_to("nowhere")),
    "label map deep": _instead("label_map.json", lambda path: path.write_text("[" * 50_000)),
    "label map a pipe": _instead("label_map.json", os.mkfifo),
    "label map large": _instead(
        "label_map.json", lambda path: path.write_bytes(b"[" + b"1," * 99_999)
    ),
    "label map of 5,000 digits": _instead(
        "label_map.json", lambda path: path.write_text('{"' + "9" * 5_000 + '": "a"}')
    ),
    "label map with escapes": _instead(
        "label_map.json", lambda path: path.write_text('{"\\u001b[2J": "a"}')
    ),
    "nothing": lambda folder: None,
}


def _classes(table: str | bytes | None = None) -> Builder:
    def build(folder: Path) -> None:
        for kind in ("cat", "dog"):
            (folder / kind).mkdir()
            for number in range(4):
                (folder / kind / f"{number}.png").write_bytes(png())
        if table is not None:
            content = table if isinstance(table, bytes) else table.encode()
            (folder / "labels.csv").write_bytes(content)

    return build


CLASSIFICATION: Mapping[str, Builder] = {
    "no columns": _classes("a,b\n1,2\n"),
    "path above": _classes("file,label\n../../../etc/passwd,x\n"),
    "path absolute": _classes("file,label\n/etc/passwd,x\n"),
    "path with a null": _classes("file,label\na\0b,x\n"),
    "path of 10,000 letters": _classes(f"file,label\n{'x' * 10_000},x\n"),
    "not there": _classes("file,label\nnowhere.png,x\n"),
    "no label": _classes("file,label\ncat/0.png,\n"),
    "field of 1 MB": _classes(f"file,label\n{'x' * 1_000_000},x\n"),
    "no UTF-8": _classes(b"file,label\n\xff\xfe,x\n"),
    "label of 5,000 digits": _classes(f"file,label\ncat/0.png,{'9' * 5_000}\ncat/1.png,1\n"),
    "a quote that never ends": _classes('file,label\n"' + "x\n" * 100_000),
    "rows and a field of 3 MB": _classes("file,label\n" + "cat/0.png,x\n" * 99 + "x" * 3_000_000),
    "output map a pipe": lambda folder: (_classes()(folder), os.mkfifo(folder / "label_map.json")),
}
ODD = {"label of 5,000 digits"}  # a class may be called so


def coco(**fields: Any) -> dict[str, Any]:
    plain = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 8, "height": 8} for n in range(8)],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4]}],
    }
    return {**plain, **fields}


def _coco(content: bytes | None = None, **fields: Any) -> Builder:
    def build(folder: Path) -> None:
        for number in range(8):
            (folder / f"{number}.png").write_bytes(png())
        text = json.dumps(coco(**fields)).encode() if content is None else content
        (folder / "annotations.json").write_bytes(text)

    return build


def _annotation(**fields: Any) -> Builder:
    return _coco(annotations=[{"id": 1, "image_id": 1, "category_id": 1, **fields}])


DETECTION: Mapping[str, Builder] = {
    "no JSON": _coco(b"\xff\xfe"),
    "deep": _coco(b"[" * 200_000),
    "a list": _coco(b"[]"),
    "30 MB of brackets": _coco(b'{"images": [' + b"[]," * 10_000_000 + b"0]}"),
    "5,000 digits": _coco(b'{"images": [' + b"9" * 5_000 + b"]}"),
    "no images": _coco(images=[]),
    "images a text": _coco(images="x"),
    "image above": _coco(images=[{"id": 1, "file_name": "../../etc/passwd"}]),
    "image absolute": _coco(images=[{"id": 1, "file_name": "/etc/passwd"}]),
    "image with a null": _coco(images=[{"id": 1, "file_name": "a\0b"}]),
    "image number a text": _coco(images=[{"id": "x", "file_name": "1.png"}]),
    "image number of 400 digits": _coco(images=[{"id": 10**400, "file_name": "1.png"}]),
    "no categories": _coco(categories=[]),
    "category unknown": _annotation(category_id=7),
    "category true": _annotation(category_id=True),
    "box of three": _annotation(bbox=[1, 2, 3]),
    "box negative": _annotation(bbox=[0, 0, -4, -4]),
    "box endless": _coco(json.dumps(coco()).replace("[0, 0, 4, 4]", "[0, 0, 1e999, 4]").encode()),
    "box of 1 MB": _annotation(bbox=list(range(200_000))),
    "5,000 boxes": _coco(
        annotations=[
            {"id": n, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4]} for n in range(5_000)
        ]
    ),
}


def _depths(content: bytes) -> Builder:
    def build(folder: Path) -> None:
        for number in range(4):
            (folder / f"{number}.png").write_bytes(png())
            np.save(folder / f"{number}_depth.npy", np.ones((8, 8), np.float32))
            (folder / f"{number}_depth.npy").write_bytes(content)

    return build


def _npy(header: str) -> bytes:
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


DEPTH: Mapping[str, Builder] = {
    "no array": _depths(b"hello"),
    "empty": _depths(b""),
    "array of objects": _depths(_npy("{'descr': '|O', 'fortran_order': False, 'shape': (8, 8)}")),
    "array of 2**62": _depths(
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8)}")
    ),
    "array negative": _depths(_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-8, 8)}")),
    "array that computes": _depths(_npy("__import__('os').system('touch owned')")),
    "array of texts": _depths(_npy("{'descr': '<U9', 'fortran_order': False, 'shape': (8, 8)}")),
    "array deep": _depths(_npy("(" * 110)),
}


def _archive(*members: tuple[str, bytes]) -> Builder:
    def build(folder: Path) -> None:
        with zipfile.ZipFile(
            folder / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
        ) as packed:
            for name, content in members:
                packed.writestr(name, content)

    return build


def _zeros(size: int) -> Builder:
    def build(folder: Path) -> None:
        header = _npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size // 4},)}}")
        with (
            zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
            packed.open("x.npy", "w", force_zip64=True) as member,
        ):
            member.write(header)
            for _ in range(size >> 24):
                member.write(bytes(1 << 24))

    return build


TENSORS: Mapping[str, Builder] = {
    "no archive": lambda folder: (folder / "x.npz").write_bytes(b"hello"),
    "empty archive": _archive(),
    "archive of 400 MB": _zeros(400 << 20),
    "archive of objects": _archive(
        ("x.npy", _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"))
    ),
    "archive of texts": _archive(("x.npy", b"hello")),
    "archive above": _archive(("../../x.npy", b"hello")),
    "array of 2**62": lambda folder: (folder / "x.npy").write_bytes(
        _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}")
    ),
    "array of another shape": lambda folder: np.save(folder / "x.npy", np.zeros((3, 5))),
    "array of NaN": lambda folder: np.save(folder / "x.npy", np.full((4, 4), np.nan)),
    "raw of three bytes": lambda folder: (folder / "x.raw").write_bytes(b"abc"),
    "an image": lambda folder: (folder / "x.png").write_bytes(png()),
    "nothing": lambda folder: None,
}
FAMILIES: Mapping[str, Mapping[str, Builder]] = {
    "segmentation": SEGMENTATION,
    "classification": CLASSIFICATION,
    "detection": DETECTION,
    "depth": DEPTH,
    "tensors": TENSORS,
}
