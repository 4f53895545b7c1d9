#!/usr/bin/env python3
"""Publishes the wire vectors and short replays to a running node with the engines' own
libraries and compares every answer with a plain model.

usage: conformance.py SERVER VECTORS.json
"""

import json
import random
import sys
import time
import urllib.error
import urllib.request

import zmq

from engines import Codec, library
from worker import Worker

SERVER, VECTORS = sys.argv[1].rstrip("/"), sys.argv[2]
DEADLINE = 20.0
passed = 0


def call(method, path, body=None):
    req = urllib.request.Request(SERVER + path, method=method, data=None if body is None else json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(req, timeout=10) as r:
            return r.status, json.loads(r.read() or b"null")
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


class Model:
    """What a worker holds: engine hash -> path of blocks. Nothing else is needed."""

    def __init__(self, block_size):
        self.size = block_size
        self.paths = {}

    def store(self, hashes, parent, tokens):
        if parent is not None and parent not in self.paths:
            return  # not credited: the parent is not known
        path = () if parent is None else self.paths[parent]
        for i, h in enumerate(hashes):
            path = path + (tuple(tokens[i * self.size : (i + 1) * self.size]),)
            self.paths[h] = path

    def remove(self, hashes):
        for h in hashes:
            self.paths.pop(h, None)

    def clear(self):
        self.paths.clear()

    def score(self, tokens):
        held, n = set(self.paths.values()), 0
        blocks = tuple(tuple(tokens[i : i + self.size]) for i in range(0, len(tokens) - self.size + 1, self.size))
        while n < len(blocks) and blocks[: n + 1] in held:
            n += 1
        return n * self.size


def score_of(model_name, instance, tokens, extra):
    status, ans = call("POST", "/query", {"model_name": model_name, "token_ids": tokens, **extra})
    if status != 200:
        raise SystemExit(f"FAIL: /query answered {status}: {ans}")
    return ans["instances"].get(str(instance), {}).get("gpu", 0)


def check(what, model_name, instance, tokens, want, extra={}, workers=()):
    """Waits until the answer is want: events are on their way for a moment."""
    global passed
    end, got = time.monotonic() + DEADLINE, None
    while time.monotonic() < end:
        for w in workers:
            w.serve_replay()
        got = score_of(model_name, instance, tokens, extra)
        if got == want:
            passed += 1
            return
        time.sleep(0.02)
    raise SystemExit(f"FAIL: {what}: score {got} tokens, want {want}")


def register(instance, worker, model_name, block_size):
    status, ans = call("POST", "/register", {"instance_id": instance, "endpoint": worker.endpoint, "replay_endpoint": worker.replay_endpoint, "model_name": model_name, "block_size": block_size})
    if status != 201:
        raise SystemExit(f"FAIL: /register answered {status}: {ans}")
    worker.wait_for_subscriber(time.monotonic() + DEADLINE)


def probe_of(size):
    """A block that no vector has."""
    return list(range(900_000, 900_000 + size))


def publish_probe(w, size, rank=0):
    codec = Codec("vllm-map")
    w.publish(codec.encode([codec.event("BlockStored", block_hashes=[77], parent_block_hash=None, token_ids=probe_of(size), block_size=size)], rank))


def run_vectors(ctx, vectors):
    """Each payload vector alone, sent as its own bytes: only a store at the root in the
    device tier, of an indexable group and in the plain namespace, may be credited."""
    answers, workers = [], []
    for i, v in enumerate(vectors["payloads"]):
        stores = [e for e in v["expect"]["events"] if e["kind"] == "stored" and e.get("tokens")]
        size = next((e["block_size"] for e in stores), 4)
        name, instance = f"vector-{v['name']}", 1000 + i
        w = Worker(ctx, four_frames=i % 2 == 0)
        workers.append((w, instance, name))
        register(instance, w, name, size)
        w.publish(bytes.fromhex(v["hex"]))
        # A known block behind it shows that the vector has been dealt with.
        publish_probe(w, size, v["expect"].get("rank") or 0)
        check(f"{v['name']}: the batch behind the vector", name, instance, probe_of(size), size, workers=[w])
        for e in stores:
            namespace = {k: x for k, x in (("lora_name", e["lora_name"]), ("cache_salt", e["salt"])) if x}
            creditable = e["parent"] is None and e["tier"] == "device" and e.get("indexable", True) and not any(e["extra_keys"] or [])
            # A bigram page covers its own tokens and the one after: n pages have n*size+1.
            full = len(e["tokens"]) // size * size
            answers.append((f"{v['name']}: {v['description']}", name, instance, e["tokens"], full if creditable and not namespace else 0, {}, [w]))
            if namespace and not e.get("extra_keys"):
                answers.append((f"{v['name']} in its namespace", name, instance, e["tokens"], full if creditable else 0, namespace, [w]))
    for a in answers:
        check(*a)
    for a in answers:  # again, when all is quiet: what must not be credited did not come late either
        check(*a)
    for w, instance, name in workers:
        call("POST", "/unregister", {"instance_id": instance, "model_name": name})
        w.close()


def run_malformed(ctx, vectors):
    """Bytes that are no batch, or hold events that are none: the good events of the same
    batch and the batches behind it count, and a neighbour notices nothing."""
    size, neighbour = 4, Worker(ctx, four_frames=True)
    register(5000, neighbour, "malformed", size)
    publish_probe(neighbour, size)
    check("the neighbour", "malformed", 5000, probe_of(size), size, workers=[neighbour])
    for i, v in enumerate(vectors["malformed"]):
        instance = 5001 + i
        w = Worker(ctx, four_frames=i % 2 == 0)
        register(instance, w, "malformed", size)
        w.publish(b"\x91" * 10_000 + b"\xc0" if v["hex"] is None else bytes.fromhex(v["hex"]))
        publish_probe(w, size)
        check(f"{v['name']} ({v['description']}): the batch behind it", "malformed", instance, probe_of(size), size, workers=[w])
        check(f"{v['name']} ({v['description']}): the neighbour", "malformed", 5000, probe_of(size), size, workers=[neighbour])
        call("POST", "/unregister", {"instance_id": instance, "model_name": "malformed"})
        w.close()
    for name, head in (("two frames", [b""]), ("a sequence of 7 bytes", [b"", b"\0" * 7]), ("no payload", [])):
        neighbour.pub.send_multipart(head + [b"\x93\x00\x90\xc0"])
        check(f"a message with {name}", "malformed", 5000, probe_of(size), size, workers=[neighbour])
    call("POST", "/unregister", {"instance_id": 5000, "model_name": "malformed"})
    neighbour.close()


def run_replay(ctx, fmt, seed):
    """A short life of an engine: stores, removals out of order, a hole refilled, lost
    batches that only replay can bring back, a clear."""
    rng, size = random.Random(seed), 4
    name, instance = f"replay-{fmt}", 2000 + seed
    codec, model, w = Codec(fmt), Model(size), Worker(ctx, four_frames=fmt.startswith("vllm"))
    register(instance, w, name, size)
    prompts = [[rng.randrange(50_000) for _ in range(size * 8)] for _ in range(3)]
    prompts += [p[: size * 4] + [rng.randrange(50_000) for _ in range(size * 4)] for p in prompts]
    hash_of = {}

    def h(tokens):
        key = tuple(tokens)
        return hash_of.setdefault(key, rng.getrandbits(63) - (1 << 62) if fmt.startswith("sglang") else rng.getrandbits(64))

    def store(tokens, first, last, **kw):
        hashes = [h(tokens[: (b + 1) * size]) for b in range(first, last)]
        parent = None if first == 0 else h(tokens[: first * size])
        part = tokens[first * size : last * size]
        model.store(hashes, parent, part)
        w.publish(codec.encode([codec.event("BlockStored", block_hashes=hashes, parent_block_hash=parent, token_ids=part, block_size=size, medium="GPU")]), **kw)

    def remove(tokens, blocks, **kw):
        hashes = [h(tokens[: (b + 1) * size]) for b in blocks]
        model.remove(hashes)
        w.publish(codec.encode([codec.event("BlockRemoved", block_hashes=hashes, medium="GPU")]), **kw)

    def compare(what):
        for p in prompts:
            check(f"{fmt}: {what}", name, instance, p, model.score(p), workers=[w])

    store(prompts[0], 0, 5)
    store(prompts[0], 5, 8)
    store(prompts[3], 4, 8)
    compare("stores")
    remove(prompts[0], [1])
    compare("a hole")
    store(prompts[0], 1, 2)
    compare("the hole refilled")
    store(prompts[1], 0, 8, lose=True)
    remove(prompts[0], [6, 7], lose=True)
    store(prompts[4], 4, 6)
    compare("two lost batches, replayed")
    remove(prompts[1], [7, 6, 5])
    compare("removals in any order")
    model.clear()
    w.publish(codec.encode([codec.event("AllBlocksCleared")]))
    store(prompts[2], 0, 3)
    compare("a clear, then a store")
    call("POST", "/unregister", {"instance_id": instance, "model_name": name})
    w.close()


def main():
    ctx = zmq.Context()
    print(f"conformance with {library()}, pyzmq {zmq.pyzmq_version()} (libzmq {zmq.zmq_version()})")
    vectors = json.load(open(VECTORS))
    run_vectors(ctx, vectors)
    print(f"vectors: {passed} answers as expected")
    before = passed
    run_malformed(ctx, vectors)
    print(f"malformed: {passed - before} answers as expected")
    for i, fmt in enumerate(["vllm-map", "vllm-array", "sglang-map", "sglang-array"]):
        before = passed
        run_replay(ctx, fmt, i)
        print(f"replay {fmt}: {passed - before} answers as expected")
    ctx.destroy(linger=0)
    print(f"{passed} passed, 0 failed")


main()
