"""What is learned online: an engine's speeds, the lengths of outputs, bytes a token.

Reading order: pace (a node's speeds within its class), speeds (a class's), fit (the
regression under it), lengths (outputs and tokens, by model and tenant). Imports `ids` only.
Owned by the scheduler's thread.
"""

from pointsman.core.calibration.lengths import OutputLengths, TokenRatio
from pointsman.core.calibration.pace import Pace
from pointsman.core.calibration.speeds import PRIOR, Calibration, Speeds

__all__ = ["PRIOR", "Calibration", "OutputLengths", "Pace", "Speeds", "TokenRatio"]
