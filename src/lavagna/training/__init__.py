"""Training: from a model, texts and settings to a run's folder, resumable at any moment, by one process or many."""

from lavagna.training.config import TrainConfig
from lavagna.training.groups import parameter_groups
from lavagna.training.loop import train
from lavagna.training.run import Run, Settings, read_run
from lavagna.training.schedule import learning_rate
from lavagna.training.sitting import TrainResult
from lavagna.training.trainer import NonFiniteLossError

__all__ = [
    "NonFiniteLossError",
    "Run",
    "Settings",
    "TrainConfig",
    "TrainResult",
    "learning_rate",
    "parameter_groups",
    "read_run",
    "train",
]
