"""Engine event batches, encoded with the library that the engines themselves use.

With msgspec (vLLM, SGLang) the structs are declared as those engines declare them:
array-like or map, tagged by class name, defaults omitted. Without it the same shapes
are packed with msgpack. Everything here is wire shape; nothing knows kvcluster.
"""

import struct
import time

try:
    import msgspec
except ImportError:
    msgspec = None
    import msgpack

STORED = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx"]
REMOVED = ["block_hashes", "medium", "group_idx"]


class Codec:
    """Encodes batches in one format: vllm-map, vllm-array, sglang-map or sglang-array."""

    def __init__(self, fmt):
        self.fmt = fmt
        self.maps = fmt.endswith("-map")
        sglang = fmt.startswith("sglang")
        self.stored = STORED[:6] if sglang else STORED
        self.removed = REMOVED[:2] if sglang else REMOVED
        if msgspec:
            opts = dict(array_like=not self.maps, omit_defaults=True)
            self.types = {
                "BlockStored": msgspec.defstruct("BlockStored", [(f, object) if i < 4 else (f, object, None) for i, f in enumerate(self.stored)], tag=True, **opts),
                "BlockRemoved": msgspec.defstruct("BlockRemoved", [(f, object) if i < 1 else (f, object, None) for i, f in enumerate(self.removed)], tag=True, **opts),
                "AllBlocksCleared": msgspec.defstruct("AllBlocksCleared", [], tag=True, **opts),
            }
            self.batch = msgspec.defstruct("EventBatch", [("ts", float), ("events", list), ("data_parallel_rank", object, None)], array_like=True, omit_defaults=True)

    def event(self, name, **fields):
        if msgspec:
            return self.types[name](**fields)
        order = {"BlockStored": self.stored, "BlockRemoved": self.removed, "AllBlocksCleared": []}[name]
        if self.maps:
            return {"type": name, **{f: fields[f] for f in order if f in fields}}
        return [name] + [fields.get(f) for f in order]

    def encode(self, events, rank=0):
        if msgspec:
            return msgspec.msgpack.encode(self.batch(ts=time.time(), events=events, data_parallel_rank=rank))
        return msgpack.packb([time.time(), events, rank], use_bin_type=True)


def sequence_frame(seq):
    return struct.pack(">Q", seq & 0xFFFFFFFFFFFFFFFF)


def library():
    return f"msgspec {msgspec.__version__}" if msgspec else f"msgpack {msgpack.version}"
