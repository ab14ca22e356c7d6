"""Logits of the rwkv package, on the CPU and in float32; run in a process of its own.

The package decides when it is imported which versions it reads and what it compiles, and prints as it loads.
`python rwkv_package.py FOLDER` reads every FOLDER/VERSION*.pth and FOLDER/texts.pt, the ids of some texts, and leaves
FOLDER/logits.pt: by file, for each text, the logits of the whole at once, and of a first part and single steps.
"""

import importlib
import os
import sys
from pathlib import Path

import torch


def run(folder: Path) -> None:
    """Read all files of a folder and write down what the package makes of the text."""
    texts, logits = torch.load(folder / "texts.pt", weights_only=True), {}
    files = sorted(folder.glob("*.pth"))
    for newest in (False, True):
        os.environ.update(RWKV_V7_ON=str(int(newest)), RWKV_JIT_ON="0", RWKV_CUDA_ON="0")
        package = importlib.reload(importlib.import_module("rwkv.model"))
        for file in files:
            if file.stem.startswith("7") == newest:
                model = package.RWKV(str(file.with_suffix("")), "cpu fp32")
                logits[file.stem] = [_read(model, text.tolist()) for text in texts]
    torch.save(logits, folder / "logits.pt")


def _read(model, ids: list[int]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        whole, _ = model.forward(list(ids), None, full_output=True)
        first, state = model.forward(list(ids[: len(ids) // 2]), None, full_output=True)
        steps = [first]
        for id in ids[len(ids) // 2 :]:
            last, state = model.forward([id], state)
            steps.append(last[None])
    return {"whole": whole.clone(), "steps": torch.cat(steps)}


if __name__ == "__main__":
    run(Path(sys.argv[1]))
