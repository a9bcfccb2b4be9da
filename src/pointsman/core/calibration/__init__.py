"""What is learned online: an engine's speeds, the lengths of outputs, bytes a token.

Reading order: pace (a node's speeds within its class), calibration (a class's), fit (the
regression under it), speeds (what is learned), lengths (outputs and tokens, by model and
tenant). Imports names and bounds only. Owned by the scheduler's thread.
"""

from pointsman.core.calibration.calibration import Calibration
from pointsman.core.calibration.lengths import OutputLengths, TokenRatio
from pointsman.core.calibration.pace import Pace
from pointsman.core.calibration.speeds import PRIOR, Speeds

__all__ = ["PRIOR", "Calibration", "OutputLengths", "Pace", "Speeds", "TokenRatio"]
