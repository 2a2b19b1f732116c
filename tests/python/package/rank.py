"""A target rank in a process of its own: `rank.py ADDRESS LAYOUT RANK`, both given as text. Prints what it installs, until
its standard input ends."""

import sys
import threading

import refit


def main():
    address, layout, rank = sys.argv[1], refit.Layout.from_json(sys.argv[2]), int(sys.argv[3])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with refit.Receiver(address, layout, rank) as receiver:
        print("joined", flush=True)
        last = 0
        while not ended.is_set():
            receiver.run(0.02)
            if receiver.complete and receiver.version.number != last:
                last = receiver.version.number
                print(last, receiver.version.step, bytes(receiver.buffers["b"]).hex(), flush=True)


if __name__ == "__main__":
    main()
