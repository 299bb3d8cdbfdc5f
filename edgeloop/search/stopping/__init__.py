"""Early stopping: which candidates go on training."""

from edgeloop.search.stopping.forecast import Forecast, forecast
from edgeloop.search.stopping.rule import StoppingRule
from edgeloop.search.stopping.rungs import RungMember, Rungs, Unit, rungs_of

__all__ = ["Forecast", "RungMember", "Rungs", "StoppingRule", "Unit", "forecast", "rungs_of"]
