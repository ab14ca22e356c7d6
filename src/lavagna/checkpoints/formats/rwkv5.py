"""RWKV-5 as its authors save it, versions 5.0, 5.1 and 5.2."""

from typing import Any

from lavagna.checkpoints.formats.rwkv_file import Part, RwkvFile, Shapes, norm
from lavagna.checkpoints.rules import Rule
from lavagna.models import ModelConfig

DECAY, KEY, GATE = "blocks.0.att.time_decay", "blocks.0.att.key.weight", "blocks.0.att.gate.weight"


class Rwkv5(RwkvFile):
    """RWKV-5 in a file of RWKV-LM: 5.1 is the first with a gate, 5.2 the first with a decay for each channel.

    5.0 writes the logarithm of its bonus, as `time_first`; the others write the bonus, as `time_faaaa`.
    """

    layer = "rwkv5"
    blends = "time_mix_"

    def options(self, shapes: Shapes) -> dict[str, Any]:
        heads, *rest = shapes[DECAY]
        by_channel = any(size > 1 for size in rest)
        version = "5.2" if by_channel else "5.1" if GATE in shapes else "5.0"
        return {"heads": heads, "head_dim": shapes[KEY][0] // heads, "version": version}

    def title(self, model_config: ModelConfig) -> str:
        return f"rwkv5, version {model_config.options['version']}"

    def time_mix(self, part: Part, layer: Any, index: int) -> list[Rule]:
        oldest, shape = layer.version == "5.0", tuple(layer.w0.shape)
        published = shape[:1] if oldest else shape
        gate = {} if oldest else {"gate": "gate"}
        return [
            *(
                part.vector(f"shift.{reader}", f"time_mix_{reader}", (layer.d_model,))
                for reader in "kvr" + "g" * len(gate)
            ),
            part.vector("w0", "time_decay", shape, published),
            part.vector("u", "time_first" if oldest else "time_faaaa", shape, published),
            *part.matrices(key="key", value="value", receptance="receptance", out="output", **gate),
            *norm(f"{part.ours}.norm", f"{part.theirs}.ln_x"),
        ]
