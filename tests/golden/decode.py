"""A second decoder of the fixed layouts in schema/wire.md, written only from that page. Usage: decode.py DIRECTORY."""
import pathlib
import struct
import sys


def fields(data, layout, at=0):
    """layout: (name, struct code); 'H' big-endian hash of 16 bytes becomes 32 hex digits."""
    out = {}
    for name, code in layout:
        if code == "hash":
            out[name] = data[at:at + 16].hex()
            at += 16
        else:
            out[name] = struct.unpack_from("<" + code, data, at)[0]
            at += struct.calcsize("<" + code)
    return out, at


TXN = [("lineage", "hash"), ("epoch", "Q"), ("counter", "Q")]
FRAME = [("magic", "4s"), ("version", "H"), ("reserved", "H"), ("bytes", "Q"), ("key", "I"), ("reserved2", "I"), ("mac", "hash"), ("hash", "hash")]
BUCKET = [("magic", "4s"), ("format", "H"), ("header", "H"), ("job", "hash"), *TXN, ("bucket", "I"), ("sender", "I"), ("incarnation", "Q"),
          ("encoding", "H"), ("transform", "H"), ("group", "I"), ("base", "hash"), ("payload", "Q"), ("logical", "Q"), ("payload_hash", "hash"),
          ("reserved", "hash"), ("own_hash", "hash")]
MANIFEST = [("magic", "4s"), ("format", "H"), ("header", "H"), ("bytes", "Q"), ("job", "hash"), *TXN, ("member", "I"), ("reserved", "I"),
            ("incarnation", "Q"), ("layout_epoch", "Q"), ("plan", "hash"), ("recipients", "I"), ("buckets", "I"), ("entries", "I"),
            ("reserved2", "I"), ("r3", "Q"), ("r4", "Q"), ("r5", "Q"), ("hash", "hash")]


def check(condition, what):
    if not condition:
        raise SystemExit("golden: " + what)


def message(path):
    data = path.read_bytes()
    head, at = fields(data, FRAME)
    check(at == 56 and head["magic"] == b"RTTC" and head["version"] == 1, f"{path.name}: frame")
    check(head["bytes"] == len(data) - 56 and head["key"] == 0 and head["mac"] == "0" * 32, f"{path.name}: lengths or key")
    # FlatBuffers root: offset, then the table's vtable: enough to find `party` (field 3) of the envelope.
    body = data[56:]
    root = struct.unpack_from("<I", body, 0)[0]
    vtable = root - struct.unpack_from("<i", body, root)[0]
    size = struct.unpack_from("<H", body, vtable)[0]
    slot = struct.unpack_from("<H", body, vtable + 4 + 2 * 3)[0] if size > 4 + 2 * 3 else 0
    party = body[root + slot] if slot else 0
    check(party <= 3, f"{path.name}: party {party}")


def bucket(path, form=1, encoding=0, base="0" * 32, logical=77):
    data = path.read_bytes()
    head, at = fields(data, BUCKET)
    check(at == len(data) == 160 and head["magic"] == b"RTBK" and head["header"] == 160, "bucket: layout")
    check((head["format"], head["encoding"], head["base"]) == (form, encoding, base), "bucket: format, encoding, base")
    check((head["bucket"], head["sender"], head["incarnation"], head["payload"], head["logical"]) == (5, 4, 0x1234, 77, logical), "bucket: values")
    check(head["job"] == "00000000000000aa00000000000000bb" and (head["epoch"], head["counter"]) == (3, 9), "bucket: identity")


def manifest(path):
    data = path.read_bytes()
    head, at = fields(data, MANIFEST)
    check(at == 160 and head["magic"] == b"RTMF" and head["bytes"] == len(data), "manifest: layout")
    rows = [fields(data, [("rank", "I"), ("pad", "I"), ("list", "hash")], at + 24 * i)[0] for i in range(head["recipients"])]
    at += 24 * head["recipients"]
    check([r["rank"] for r in rows] == [0, 2], "manifest: recipients")
    buckets = [struct.unpack_from("<IIIIQ", data, at + 24 * i) for i in range(head["buckets"])]
    at += 24 * head["buckets"]
    check(buckets == [(0, 0, 2, 0, 100), (5, 2, 1, 0, 50)], "manifest: buckets")
    entries = [struct.unpack_from("<6IQ", data, at + 32 * i) for i in range(head["entries"])]
    check(entries == [(1, 1, 2, 3, 4, 0, 10), (7, 5, 6, 7, 8, 0, 20), (0, 9, 9, 9, 9, 0, 30)], "manifest: entries")
    check(at + 32 * head["entries"] == len(data), "manifest: length")


def main():
    root = pathlib.Path(sys.argv[1])
    messages = sorted(root.glob("*.msg"))
    # One of each kind as the first release wrote it, and those that have grown since, with all their fields.
    grown = [m for m in messages if m.stem.endswith("_added")]
    check(len(messages) - len(grown) == 32 and grown, f"32 messages expected, {len(messages) - len(grown)} found")
    for path in messages:
        message(path)
    bucket(root / "v1.bucket")
    bucket(root / "v2.bucket", 2, 2, "00000000000000cc00000000000000dd", 1000)
    manifest(root / "v1.manifest")
    print("golden files read:", len(messages) + 3)


if __name__ == "__main__":
    main()
