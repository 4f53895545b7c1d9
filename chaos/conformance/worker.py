"""A publisher as an engine has it: XPUB for live batches, ROUTER for replay."""

import time

import zmq

from engines import sequence_frame

END = b"\xff" * 8


class Worker:
    """One engine. XPUB instead of PUB only so that the test sees the subscription
    arrive; the bytes on the wire are the same."""

    def __init__(self, ctx, four_frames):
        self.four_frames = four_frames
        self.pub = ctx.socket(zmq.XPUB)
        self.pub.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.router = ctx.socket(zmq.ROUTER)
        self.router.linger = 0
        self.replay_endpoint = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.seq = 0
        self.buffer = []

    def wait_for_subscriber(self, deadline):
        while time.monotonic() < deadline:
            self.serve_replay()
            if self.pub.poll(50) and self.pub.recv()[:1] == b"\x01":
                return
        raise SystemExit("FAIL: the node did not subscribe to " + self.endpoint)

    def publish(self, payload, lose=False):
        """Sends a batch; with lose it only goes into the replay buffer."""
        self.buffer.append((self.seq, payload))
        if not lose:
            self.pub.send_multipart([b"", sequence_frame(self.seq), payload])
        self.seq += 1

    def serve_replay(self):
        served = 0
        while self.router.poll(0):
            frames = self.router.recv_multipart()
            if len(frames) != 3 or frames[1] != b"" or len(frames[2]) != 8:
                continue
            start = int.from_bytes(frames[2], "big")
            head = [frames[0], b""] + ([b""] if self.four_frames else [])
            for seq, payload in self.buffer:
                if seq >= start:
                    self.router.send_multipart(head + [sequence_frame(seq), payload])
            self.router.send_multipart(head + [END, b""])
            served += 1
        return served

    def close(self):
        self.pub.close()
        self.router.close()
