"""The advisor (BCA): which batch cap to run under an SLO, and what it frees."""

from servefit.advise.advisor import (
    Advice,
    Deployment,
    Problem,
    Replicas,
    recommend,
    replicas,
)
from servefit.advise.candidates import candidate_caps, every_batch
from servefit.advise.curve import Curve, measured_curve, predicted_curve
from servefit.advise.decision import Decision, Infeasible, Limit, Objective, decide
from servefit.advise.problem import Terms, measured_problem, predicted_problem
from servefit.advise.settings import ENGINES, get_engine
from servefit.advise.slo import RelativeSlo, Slo, parse_slos

__all__ = [
    "ENGINES",
    "Advice",
    "Curve",
    "Decision",
    "Deployment",
    "Infeasible",
    "Limit",
    "Objective",
    "Problem",
    "RelativeSlo",
    "Replicas",
    "Slo",
    "Terms",
    "candidate_caps",
    "decide",
    "every_batch",
    "get_engine",
    "measured_curve",
    "measured_problem",
    "parse_slos",
    "predicted_curve",
    "predicted_problem",
    "recommend",
    "replicas",
]
