#!/usr/bin/env python3
"""Two replicas of DiLoCo apart, over a link with a latency and a bandwidth: does a step wait for messages?

    cargo build --release
    python3 benches/replicas.py --meshloom target/release/meshloom --etcd ETCD

Each replica is a process with one device. What one reads from the other passes a relay on loopback, which delays every
byte and lets so many through in a second. Prints a line for each number of steps from sending to use: median seconds of
a step, and seconds that steps waited for messages, as the metrics have them.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


class Relay:
    """Passes on what comes, later and slower; each direction has the whole bandwidth."""

    def __init__(self, target, delay, bytes_per_second):
        self.target, self.delay, self.rate = target, delay, bytes_per_second
        self.free_at = {}

    async def pass_on(self, direction, reader, writer):
        queue = asyncio.Queue()

        async def deliver():
            while (item := await queue.get()) is not None:
                at, data = item
                await asyncio.sleep(max(0, at - time.monotonic()))
                writer.write(data)
                await writer.drain()
            writer.close()

        delivering = asyncio.create_task(deliver())
        while data := await reader.read(64 << 10):
            start = max(time.monotonic(), self.free_at.get(direction, 0))
            self.free_at[direction] = start + len(data) / self.rate
            queue.put_nowait((self.free_at[direction] + self.delay, data))
        queue.put_nowait(None)
        await delivering

    async def connected(self, reader, writer):
        try:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self.pass_on("to", reader, there[1]), self.pass_on("from", there[0], writer), return_exceptions=True
        )


async def run(options, folder, overlap, relayed):
    store, job = f"http://127.0.0.1:{options.store_port}", f"bench-{overlap}-{relayed}"
    processes, relays = [], []
    for replica in range(2):
        listen, reach = free_port(), free_port()
        arguments = ["--replica", str(replica), "--store", store, "--job", job, "--listen", f"127.0.0.1:{listen}"]
        if relayed:
            relay = Relay(listen, options.latency / 1e3, options.megabits * 1e6 / 8)
            relays.append(await asyncio.start_server(relay.connected, "127.0.0.1", reach))
            arguments += ["--advertise", f"127.0.0.1:{reach}"]
        settings = [
            "target.devices=1", "mesh.axes=data=1", "diloco.replicas=2", "diloco.streaming=true", "diloco.fragments=3",
            f"diloco.sync_period={3 * options.every}", f"diloco.overlap_steps={overlap}", *options.set,
        ]
        metrics = os.path.join(folder, f"{job}-{replica}.jsonl")
        command = [options.meshloom, "train", "--sample", "0", "--steps", str(options.steps), "--metrics", metrics]
        command += arguments + [part for setting in settings for part in ("--set", setting)]
        log = open(os.path.join(folder, f"{job}-{replica}.log"), "w")
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        processes.append((process, metrics, log.name))
    for process, _, log in processes:
        if await process.wait() != 0:
            sys.exit(open(log).read())
    for relay in relays:
        relay.close()
    lines = [json.loads(line) for line in open(processes[0][1])]
    steps = [line["step_seconds"] - line["wait_seconds"] for line in lines]
    # The first round also has the connection made.
    waits = [line["wait_seconds"] for line in lines[2 * options.every:]]
    link = f"{options.latency:g} ms, {options.megabits:g} Mbit/s" if relayed else "loopback"
    print(f"| {link} | {overlap} | {statistics.median(steps):.3f} | {sum(waits):.3f} | {max(waits):.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshloom", default="target/release/meshloom")
    parser.add_argument("--etcd", default="etcd")
    parser.add_argument("--latency", type=float, default=50, help="milliseconds, one way")
    parser.add_argument("--megabits", type=float, default=100, help="per second")
    parser.add_argument("--every", type=int, default=8, help="steps from sync to sync")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--set", action="append", default=[], help="further settings of the run")
    options = parser.parse_args()
    options.store_port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        client, peer = (f"http://127.0.0.1:{port}" for port in (options.store_port, free_port()))
        etcd = subprocess.Popen(
            [options.etcd, "--data-dir", f"{folder}/etcd", "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer, "--log-level", "error"],
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(2)
            print("| link | steps from sending to use | a step, s | all waits, s | longest wait, s |\n|---|---|---|---|---|")
            for overlap, relayed in [(0, False), (0, True), (1, True), (2, True), (4, True), (options.every - 1, True)]:
                asyncio.run(run(options, folder, overlap, relayed))
        finally:
            etcd.terminate()
            etcd.wait()


if __name__ == "__main__":
    main()
