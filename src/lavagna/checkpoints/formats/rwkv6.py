"""RWKV-6 as its authors save it."""

from typing import Any

from lavagna.checkpoints.formats.rwkv_file import Part, RwkvFile, Shapes, norm, sizes
from lavagna.checkpoints.rules import Rule, same, transpose

ATT = "blocks.0.att"


class Rwkv6(RwkvFile):
    """RWKV-6 in a file of RWKV-LM, with or without a learned first state (`time_state`)."""

    layer = "rwkv6"
    blends = "time_maa_"

    def options(self, shapes: Shapes) -> dict[str, Any]:
        heads, size = sizes(shapes, f"{ATT}.time_faaaa", 2)
        return {
            "heads": heads,
            "head_dim": size,
            "mix_rank": sizes(shapes, f"{ATT}.time_maa_w2", 3)[1],
            "decay_rank": sizes(shapes, f"{ATT}.time_decay_w1", 2)[1],
            "learned_state": f"{ATT}.time_state" in shapes,
        }

    def time_mix(self, part: Part, layer: Any, index: int) -> list[Rule]:
        heads, size = layer.heads
        rules = [
            *(part.vector(f"shift.{reader}", f"time_maa_{reader}", (layer.d_model,)) for reader in "xwkvrg"),
            same(f"{part.ours}.shift.adapter.down.weight", f"{part.theirs}.time_maa_w1", transpose()),
            same(f"{part.ours}.shift.adapter.up", f"{part.theirs}.time_maa_w2", transpose()),
            *part.adapter("decay", "time_decay_w1", "time_decay_w2"),
            part.vector("w0", "time_decay", (heads * size,)),
            part.vector("u", "time_faaaa", (heads, size), (heads, size)),
            *part.matrices(key="key", value="value", receptance="receptance", gate="gate", out="output"),
            *norm(f"{part.ours}.norm", f"{part.theirs}.ln_x"),
        ]
        start = [] if layer.start is None else [same(f"{part.ours}.start", f"{part.theirs}.time_state")]
        return rules + start
