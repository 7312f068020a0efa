"""What is minimised, one file each. A new one is a file and a line of `KINDS` (and of `config.OBJECTIVES`)."""

from radiance_jax.training.config import TrainConfig
from radiance_jax.training.objectives.base import Objective
from radiance_jax.training.objectives.dflash import DFlashLoss, DPaceLoss
from radiance_jax.training.objectives.dflash2 import DFlash2Loss
from radiance_jax.training.objectives.dspark import DSparkLoss

KINDS: dict[str, type[Objective]] = {"dflash": DFlashLoss, "dpace": DPaceLoss, "dflash2": DFlash2Loss, "dspark": DSparkLoss}


def objective_of(config: TrainConfig) -> Objective:
    return KINDS[config.objective].of(config)
