"""Small random changes to files: to their bytes, text, JSON and members."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from random import Random
from typing import Any

ODD_NUMBERS = (0, 1, -1, 2, 7, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63)
ODD_VALUES: tuple[Any, ...] = (
    *ODD_NUMBERS,
    -(2**63),
    10**30,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    None,
    True,
    False,
    "",
    "x",
    "x" * 5000,
    "\x00",
    "\u202e\ud7ff\U0001f600",
    "../../x",
    "/etc/passwd",
    "1e5",
    "nan",
    [],
    {},
    [[]],
    [None],
    [1, 2, 3],
    [-1, 0, 2**40],
    {"": 0},
    {"name": "x"},
)
ODD_TEXTS = (
    *map(str, ODD_NUMBERS),
    "-9223372036854775809",
    "1_000",
    "0x10",
    "0o17",
    "1e999",
    ".nan",
    ".inf",
    "-.inf",
    "~",
    "null",
    "yes",
    "2001-01-01",
    "''",
    "[]",
    "{}",
    "[[[[[[[[[[]]]]]]]]]]",
    "{a: {a: {a: {a: {a: {a: {a: {a: {a: 1}}}}}}}}}",
    "&a [1, *a]",
    "*b",
    "<<: *a",
    "!!python/object/apply:os.system ['touch CANARY']",
    "!!binary aGVsbG8=",
    "!!set {a, b}",
    "!x y",
    "? a",
    "|",
    ">-\n  text",
    "#",
    ":",
    "- ",
    "---",
    "...",
    "%YAML 9.9",
    "\t",
    "\x07",
    "\ufeff",
    "\u2028",
    "é" * 40,
)


def of_bytes(rng: Random, data: bytes) -> bytes:
    """Change, cut, double, insert or remove a few bytes."""
    held = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(held) + 1)
        some = rng.randbytes(rng.choice((1, 1, 2, 4, 8, 40)))
        match rng.randrange(9):
            case 0:
                held[at : at + len(some)] = some
            case 1:
                held[at:at] = some
            case 2:
                del held[at : at + len(some)]
            case 3:
                del held[at:]
            case 4:
                held[at:at] = held[at : at + rng.choice((4, 64, 512))]
            case 5 | 6 if at < len(held):
                held[at] ^= 1 << rng.randrange(8)
            case 7 if at < len(held):
                held[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case _:
                number = rng.choice(ODD_NUMBERS) & (2**64 - 1)
                width = rng.choice((2, 4, 8))
                held[at : at + width] = struct.pack("<Q", number)[:width]
    return bytes(held)


def of_text(rng: Random, data: bytes) -> bytes:
    """Change words, lines and signs, for example in YAML."""
    text = data.decode()
    for _ in range(rng.choice((1, 1, 2, 3))):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        place = rng.randrange(len(text) + 1)
        match rng.randrange(8):
            case 0:
                del lines[at]
                text = "\n".join(lines)
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])
                text = "\n".join(lines)
            case 2:
                lines[at] = " " * rng.randrange(5) + lines[at].lstrip()
                text = "\n".join(lines)
            case 3:
                text = text[:place] + rng.choice(ODD_TEXTS) + text[place:]
            case 4:
                text = text[:place]
            case 5:
                text = text[:place] + text[place + rng.randrange(1, 6) :]
            case _:  # replaces a word, such as a number or a key, by another
                words = lines[at].split(" ")
                words[rng.randrange(len(words))] = rng.choice(ODD_TEXTS)
                lines[at] = " ".join(words)
                text = "\n".join(lines)
    return text.encode("utf-8", "surrogatepass") if rng.random() < 0.9 else of_bytes(rng, data)


def of_tree(rng: Random, tree: Any) -> Any:
    """Change one value or key somewhere in a tree of JSON."""
    at = tree
    while isinstance(at, dict | list) and at:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.85:
            at = at[key]
            continue
        match rng.randrange(6):
            case 0:
                del at[key]
            case 1 if isinstance(at, list):
                at.insert(key, at[key])
            case 1 | 2 if isinstance(at, dict):
                at[str(rng.choice(ODD_VALUES))] = at.pop(key)
            case 3 if isinstance(at[key], int):
                at[key] += rng.choice((-1, 1))
            case _:
                at[key] = rng.choice(ODD_VALUES)
        return tree
    return rng.choice(ODD_VALUES)


def of_json(rng: Random, data: bytes) -> bytes:
    """Change one or two values, or the bytes."""
    if rng.random() < 0.15:
        return of_bytes(rng, data)
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 2))):
        tree = of_tree(rng, tree)
    return json.dumps(tree).encode()


def of_archive(rng: Random, data: bytes) -> bytes:
    """Change a member of a ZIP archive and its checksum, or bytes of the whole."""
    if rng.random() < 0.3:
        return of_bytes(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    if rng.random() < 0.1:
        del members[name]
    elif name.endswith(".json"):
        members[name] = of_json(rng, members[name])
    elif name.endswith(".pkl") and rng.random() < 0.3:
        members[name] = rng.choice(HOSTILE_PICKLES)
    else:
        members[name] = of_bytes(rng, members[name])
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return held.getvalue()


# Programs that create CANARY if they are run.
HOSTILE_PICKLES = (
    b"cos\nsystem\n(S'touch CANARY'\ntR.",
    b"\x80\x02cposix\nsystem\nX\x0c\x00\x00\x00touch CANARY\x85R.",
    b"c__builtin__\neval\n(S\"open('CANARY', 'w').close()\"\ntR.",
    b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x19open('CANARY','w').close()\x85R.",
    b"(S'touch CANARY'\nios\nsystem\n.",
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x02K\x03tR.",
)


def of_safetensors(rng: Random, data: bytes) -> bytes:
    """Change the header and its length, or bytes of the whole."""
    if rng.random() < 0.4:
        return of_bytes(rng, data)
    (length,) = struct.unpack_from("<Q", data)
    header = of_json(rng, data[8 : 8 + length])
    if rng.random() < 0.3:
        header += b" " * rng.randrange(64)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def of_protocol_buffer(rng: Random, data: bytes) -> bytes:
    """Change a field somewhere in an ONNX model, or its bytes."""
    if rng.random() < 0.4:
        return of_bytes(rng, data)
    import onnx

    model = onnx.ModelProto.FromString(data)
    message: Any = model
    while True:
        fields = message.ListFields()
        if not fields:
            break
        field, value = rng.choice(fields)
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if field.message_type and (not repeated or (value and rng.random() < 0.9)):
            message = rng.choice(value) if repeated else value
            if rng.random() < 0.9:
                continue
            if repeated:
                del value[rng.randrange(len(value))]
            break
        _change_field(rng, message, field, repeated=repeated)
        break
    return bytes(model.SerializeToString())


def _change_field(rng: Random, message: Any, field: Any, *, repeated: bool) -> None:
    name = field.name
    if field.message_type or field.enum_type or rng.random() < 0.2:
        message.ClearField(name)
        return
    odd = rng.choice(
        {
            "string": ("", "x", "Conv", "MaxPool", "Relu", "a" * 3000, "../x", "y"),
            "bytes": (b"", b"x", b"SAME_UPPER", rng.randbytes(12)),
            "float": (0.0, -1.0, float("nan"), float("inf"), 1e38),
            "int": (0, 1, -1, 2, 3, 7, 2**31 - 1),
        }[KINDS_OF_FIELDS.get(field.type, "int")]
    )
    if not repeated:
        setattr(message, name, odd)
        return
    values = getattr(message, name)
    if values and rng.random() < 0.7:
        values[rng.randrange(len(values))] = odd
    else:
        values.append(odd)


# Numbers of field types in protocol buffers.
KINDS_OF_FIELDS = {9: "string", 12: "bytes", 1: "float", 2: "float"}
