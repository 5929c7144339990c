"""Whoever knocks on a rank's port without belonging there harms nobody."""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import torch
import torch.distributed as dist

from fault.harness import Link, Ranks, listening_port


def train(link: Link) -> None:
    link.start_group(timeout=20)
    dist.all_reduce(torch.ones(10))
    link.say("ready")
    end = time.monotonic() + 3.0
    slowest = 0.0
    steps = 0
    going = torch.ones(1)
    while going.item():
        tensor = torch.full((20_000,), float(link.rank + 1))
        start = time.monotonic()
        dist.all_reduce(tensor)
        slowest = max(slowest, time.monotonic() - start)
        assert torch.equal(tensor, torch.full((20_000,), 6.0))
        steps += 1
        # A new group while strangers are at the door: its connections have to get in.
        if steps % 50 == 0:
            group = dist.new_group([0, 1, 2])
            dist.all_reduce(torch.ones(1), group=group)
            dist.destroy_process_group(group)
        going = torch.tensor([float(time.monotonic() < end)])
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
    link.say("trained", (steps, slowest, len(os.listdir("/proc/self/fd"))))
    dist.destroy_process_group()


def knock(port: int, seed: int, halt: threading.Event) -> None:
    chance = random.Random(seed)
    words = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"RNGC",
        b"RNGC\x01\x00\x01\x00",
        b"",
    ]
    held = []
    while not halt.is_set():
        try:
            visitor = socket.create_connection(("127.0.0.1", port), timeout=2)
            visitor.sendall(chance.choice([*words, chance.randbytes(300)]))
        except OSError:
            continue
        if chance.random() < 0.5:
            held.append(visitor)
        else:
            visitor.close()
        if len(held) > 200:
            held.pop(0).close()
        time.sleep(0.001)
    for visitor in held:
        visitor.close()


def test_strangers_on_the_port_during_training() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with Ranks(train, 3) as ranks:
        ranks.all_say("ready")
        halt = threading.Event()
        threads = [
            threading.Thread(
                target=knock, args=(listening_port(ranks.pid(rank)), seed + rank, halt)
            )
            for rank in range(3)
        ]
        for thread in threads:
            thread.start()
        try:
            for rank in range(3):
                steps, slowest, descriptors = ranks.event(rank, "trained", 20).value
                assert steps > 50
                assert slowest < 2.0
                assert descriptors < 300
        finally:
            halt.set()
            for thread in threads:
                thread.join()
        ranks.check_end([0, 1, 2])
