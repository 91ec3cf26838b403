"""Random Avro schemas, values of them, and damage."""

import random
import struct
from typing import Any

SCALARS = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    *({"type": "long", "logicalType": f"{kind}-{unit}"} for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")),
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "string", "logicalType": "uuid"},
)  # fmt: skip


class Schemas:
    """Random schemas, and values of them."""

    def __init__(self, seed: int, *, unions: bool) -> None:
        self.random, self.unions = random.Random(seed), unions
        self.names: list[str] = []

    def name(self) -> str:
        return f"n{len(self.names)}"

    def record(self, depth: int = 0) -> Any:
        name = self.name()
        self.names.append(name)
        fields = [{"name": "first", "type": "int"}]
        fields += [
            {"name": f"f{n}", "type": self.kind(depth + 1)} for n in range(self.random.randint(0, 6 if depth else 9))
        ]
        return {"type": "record", "name": name, "fields": fields}

    def kind(self, depth: int, *, is_item: bool = False, in_union: bool = False) -> Any:
        choice = self.random.random()
        if choice < 0.35 or depth > 4:
            return self.random.choice(SCALARS[1:] if is_item or in_union else SCALARS)
        if choice < 0.45:
            return self.random.choice(LOGICAL)
        if choice < 0.65 and not in_union:
            return self.union(depth)
        if choice < 0.72:
            return {"type": "array", "items": self.kind(depth + 1, is_item=True)}
        if choice < 0.79:
            return {"type": "map", "values": self.kind(depth + 1)}
        if choice < 0.88:
            return self.record(depth)
        name = self.name()
        self.names.append(name)
        if choice < 0.94:
            return {"type": "fixed", "name": name, "size": self.random.choice([1, 2, 16] if is_item else [0, 1, 16])}
        return {"type": "enum", "name": name, "symbols": [f"s{n}" for n in range(self.random.choice([1, 3, 200]))]}

    def union(self, depth: int) -> Any:
        wanted = self.random.randint(2, 4) if self.unions and self.random.random() < 0.5 else 1
        found: dict[str, Any] = {}
        for _ in range(wanted):
            kind = self.kind(depth + 1, in_union=True)
            plain = kind if isinstance(kind, str) else kind.get("name", kind["type"])
            found.setdefault(plain, kind)
        branches = [*found.values()]
        if self.random.random() < 0.8 or (wanted == 1 and not isinstance(branches[0], dict)):
            branches.insert(self.random.randint(0, len(branches)), "null")
        return branches

    def write(self, schema: Any, out: bytearray) -> None:  # noqa: C901, PLR0912 - one branch per kind of type
        """Append a value."""

        def long(number: int) -> None:
            bits = (number << 1) ^ (number >> 63)
            while bits >= 128:
                out.append(bits & 127 | 128)
                bits >>= 7
            out.append(bits)

        def sized(data: bytes) -> None:
            long(len(data))
            out.extend(data)

        draw = self.random
        if isinstance(schema, list):
            branch = draw.randrange(len(schema))
            long(branch)
            self.write(schema[branch], out)
            return
        match schema if isinstance(schema, str) else schema["type"]:
            case "boolean":
                out.append(draw.randint(0, 1))
            case "int":
                long(draw.choice([0, -1, 5, 2**31 - 1, -(2**31), draw.randint(-(2**31), 2**31 - 1)]))
            case "long":
                long(draw.choice([0, -1, 5, 2**63 - 1, -(2**63), draw.randint(-(2**40), 2**63 - 1)]))
            case "float":
                out.extend(struct.pack("<f", draw.choice([0.0, -1.5, float("inf"), draw.random()])))
            case "double":
                out.extend(struct.pack("<d", draw.choice([0.0, -1.5, float("-inf"), draw.random()])))
            case "bytes":
                sized(draw.randbytes(draw.choice([0, 1, 7, 8, 9, 70])))
            case "string":
                sized("".join(draw.choices("aé😀\0 ", k=draw.choice([0, 1, 8, 40]))).encode())
            case "fixed":
                out.extend(draw.randbytes(schema["size"]))
            case "enum":
                long(draw.randrange(len(schema["symbols"])))
            case "record":
                for field in schema["fields"]:
                    self.write(field["type"], out)
            case "array" | "map" as kind:
                for _ in range(draw.choice([0, 0, 1, 2])):
                    block, count = bytearray(), draw.randint(1, 3)
                    for _ in range(count):
                        if kind == "map":
                            self.write("string", block)
                        self.write(schema["items" if kind == "array" else "values"], block)
                    has_size = draw.random() < 0.5
                    long(-count if has_size else count)
                    if has_size:
                        long(len(block))
                    out.extend(block)
                long(0)

    def message(self, schema: Any) -> bytes:
        out = bytearray()
        self.write(schema, out)
        return bytes(out)

    def damaged(self, message: bytes) -> bytes:
        draw, data = self.random, bytearray(message)
        for _ in range(draw.choice([1, 1, 2])):
            at = draw.randrange(len(data) + 1)
            match draw.randrange(6):
                case 0:
                    del data[at:]
                case 1:
                    data[at:at] = draw.choice(
                        [b"\xff" * 9 + b"\1", b"\x80" * 9 + b"\2", b"\xff", b"\0", b"\1", b"\x80" * 12]
                    )
                case 2:
                    data[at : at + 1] = bytes([draw.randrange(256)])
                case 3 if at < len(data):
                    data[at] ^= 1 << draw.randrange(8)
                case 4:
                    del data[at : at + draw.randint(1, 3)]
                case _:
                    data[at:at] = draw.randbytes(draw.randint(1, 4))
        return bytes(data)
