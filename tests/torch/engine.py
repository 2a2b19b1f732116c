"""An engine rank: engine.py ADDRESS LAYOUT_FILE RANK. Serves until its standard input ends; `save` writes what it holds."""

import pathlib
import sys

import refit
import torch
from processes import answer, commands


def main():
    address, layout, rank = sys.argv[1], refit.Layout.from_json(pathlib.Path(sys.argv[2]).read_text()), int(sys.argv[3])
    torch.set_num_threads(1)
    receiver = refit.Receiver(address, layout, rank)
    receiver.start()
    answer()
    for c in commands():
        if c["verb"] == "save":
            receiver.wait_version(c["version"], 30)
            boxes = [(t.name, t.box, t.factors, t.torch().clone()) for t in receiver.tensors]
            torch.save(boxes, c["path"])
            answer(step=receiver.version.step)
    receiver.close()


if __name__ == "__main__":
    try:
        main()
    except Exception as e:  # noqa: BLE001 - told to the test, which fails with it
        answer(error=f"{type(e).__name__}: {e}")
        sys.exit(1)
