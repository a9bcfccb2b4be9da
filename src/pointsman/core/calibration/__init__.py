"""What is learned online: an engine's speeds, the lengths of outputs, bytes a token.

Reading order: speeds (one node's), fit (the regression under it), lengths (outputs and
tokens, by model and tenant). Imports `ids` only. Owned by the scheduler's thread.
"""

from pointsman.core.calibration.lengths import OutputLengths, TokenRatio
from pointsman.core.calibration.speeds import PRIOR, Calibration, Speeds

__all__ = ["PRIOR", "Calibration", "OutputLengths", "Speeds", "TokenRatio"]
