"""SLIM: the paper's semi-analytical law (arXiv 2607.29575, Section VI), exactly as printed.

Six calibrated parameters; one observation is a (model, IL, OL, B) with its throughput:

    E2E   = T_pre + T_dec + t_fixed                                            (Eq. 5)
    T     = B (IL + OL) / E2E                                                  (Eq. 6)
    T_pre = F_pre / (eta_c F_max)                                              (Eq. 7)
    F_pre = L [B IL (4 D^2 + 4 D D_kv + 4 r_ff D^2) + 4 B IL^2 D]              (Eq. 8)
    T_dec = (B + B0) [T_d + M_dec / (eta_m BW_max)]                            (Eq. 9)
    T_d   = alpha OL + gamma L (D / 1024)^2 OL                                 (Eq. 10)
    M_dec = 2 L D_kv b_kv C(IL, OL)                                            (Eq. 11)
    C     = sum_{j=1..OL} (IL + j) = OL IL + OL (OL + 1) / 2                   (Eq. 12)

The brackets of Eq. 9 are damaged in the public text. ``decode_form="product"`` is the reading
above, which the paper's own tables support; ``"sum"`` is the other one,
T_dec = (B + B0) T_d + B M_dec / (eta_m BW_max), in which the offset leaves the KV traffic alone.

``without`` leaves terms out, for the paper's ablation (Table IV): ``"kv"`` sets M_dec = 0,
``"dense"`` sets T_d = 0, ``"gamma"`` sets its architecture term alone to 0; the paper does not
say which of the last two it means.

SLIM knows nothing of tensor parallelism: its peaks are one accelerator's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.fitting import Solution, fit_relative
from servefit.laws.base import Observations, Prediction, Spread, StepObservations
from servefit.laws.support import (
    prediction,
    propagate,
    require_distinct_points,
    require_parameters,
    run_mape_pct,
    setting,
    with_account,
)
from servefit.parameters import Parameter
from servefit.points import EngineSteps, FloatArray, Points

DecodeForm = Literal["product", "sum"]
Without = Literal["nothing", "kv", "dense", "gamma"]

PARAMETERS = (
    Parameter("eta_c", "1", 1e-3, 1.0, 0.5, "compute efficiency of prefill (Eq. 7)"),
    Parameter("eta_m", "1", 1e-3, 1.0, 0.5, "bandwidth efficiency of the KV scan (Eq. 9)"),
    Parameter("alpha", "s/token", 1e-9, 1.0, 1e-5, "dense decode time a token (Eq. 10)"),
    Parameter("gamma", "s/token", 1e-11, 1.0, 1e-7, "the same per layer and (D/1024)^2 (Eq. 10)"),
    Parameter("B0", "requests", 1e-2, 1e4, 32.0, "batch offset (Eq. 9)"),
    Parameter("t_fixed", "s", 1e-6, 1e3, 1e-2, "batch-level overhead (Eq. 5)"),
)
NO_STEPS = "slim: predicts whole requests, not the time of one engine step"
#: With unknown peaks an efficiency is a rate, in units of this many FLOP/s or bytes/s.
UNKNOWN_PEAK_PER_S = 1e12
#: The unit of such a rate, by which a calibration says what its efficiencies are.
RATE_UNIT = "1e12/s"


def active_context_sum(input_tokens: FloatArray, output_tokens: FloatArray) -> FloatArray:
    """C(IL, OL) of Eq. 12: tokens that one request's decode reads from the KV cache, in all."""
    return output_tokens * input_tokens + output_tokens * (output_tokens + 1) / 2


def prefill_flops(points: Points) -> FloatArray:
    """F_pre of Eq. 8 for the whole batch."""
    layers = points.per_model(lambda m: m.num_layers)
    width = points.per_model(lambda m: m.hidden_size)
    dense = points.per_model(
        lambda m: 4.0 * m.hidden_size * (m.hidden_size * (1 + m.ffn_ratio) + m.kv_width)
    )
    prompt = points.batch * points.input_tokens
    return layers * prompt * (dense + 4 * points.input_tokens * width)


def kv_bytes_read(points: Points) -> FloatArray:
    """M_dec of Eq. 11: bytes of KV cache that one request's decode reads.

    Where the mean active context was measured it replaces C / OL.
    """
    if points.mean_context_tokens is None:
        context_sum = active_context_sum(points.input_tokens, points.output_tokens)
    else:
        context_sum = points.output_tokens * points.mean_context_tokens
    return points.per_model(lambda m: m.kv_bytes_per_token) * context_sum


@dataclass(frozen=True)
class _Design:
    """Everything of the points that the parameters multiply, in seconds at efficiency 1.

    A term that is left out is 0 here, whatever its parameter.
    """

    batch: FloatArray
    prefill_s: FloatArray
    dense_tokens: FloatArray
    dense_scaled_tokens: FloatArray
    kv_s: FloatArray


def _design(points: Points, without: Without = "nothing") -> _Design:
    # Of peaks that are known in part neither is used: a fit has rates of both, or of none.
    flops_per_s = points.per_pair(
        lambda m, h: (h.has_known_peaks and h.peak_flops(m.weight_dtype)) or UNKNOWN_PEAK_PER_S
    )
    bytes_per_s = points.per_hardware(
        lambda h: (h.has_known_peaks and h.memory_bandwidth_bytes_per_s) or UNKNOWN_PEAK_PER_S
    )
    scale = points.per_model(lambda m: m.num_layers * (m.hidden_size / 1024) ** 2)
    return _Design(
        batch=points.batch,
        prefill_s=prefill_flops(points) / flops_per_s,
        dense_tokens=points.output_tokens * (without != "dense"),
        dense_scaled_tokens=scale * points.output_tokens * (without not in ("dense", "gamma")),
        kv_s=kv_bytes_read(points) / bytes_per_s * (without != "kv"),
    )


def _terms(
    theta: FloatArray, design: _Design, form: DecodeForm
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Seconds of prefill, dense decode (alpha and gamma parts apart) and KV traffic."""
    eta_c, eta_m, alpha, gamma, offset, _ = theta
    scaled = design.batch + offset
    kv_scale = scaled if form == "product" else design.batch
    return (
        design.prefill_s / eta_c,
        scaled * (alpha * design.dense_tokens),
        scaled * (gamma * design.dense_scaled_tokens),
        kv_scale * (design.kv_s / eta_m),
    )


def _e2e_s(theta: FloatArray, design: _Design, form: DecodeForm) -> FloatArray:
    """Eq. 5."""
    prefill, dense, dense_scaled, kv = _terms(theta, design, form)
    return np.asarray(prefill + dense + dense_scaled + kv + theta[5])


def _gradients_s(
    theta: FloatArray, design: _Design, form: DecodeForm
) -> tuple[FloatArray, FloatArray]:
    """d T_pre+fixed / d log theta and d T_dec / d log theta, each (..., 6), in seconds."""
    prefill, dense, dense_scaled, kv = _terms(theta, design, form)
    offset, fixed = theta[4], theta[5]
    by_offset = dense + dense_scaled + (kv if form == "product" else 0.0)
    none = np.zeros_like(prefill + kv)
    first = (-prefill + none, none, none, none, none, fixed + none)
    moved = by_offset * (offset / (design.batch + offset))
    decode = (none, -kv + none, dense + none, dense_scaled + none, moved + none, none)
    return np.stack(first, axis=-1), np.stack(decode, axis=-1)


def _starts(design: _Design, e2e_s: FloatArray, form: DecodeForm) -> list[FloatArray]:
    """Deterministic starts: for each of a few offsets B0 the model is linear in the rest.

    Non-negative least squares on the relative errors of E2E solves that; zeros are lifted to a
    thousandth of the reference, so that the logarithm exists.
    """
    from scipy.optimize import nnls

    reference = np.array([p.reference for p in PARAMETERS])
    starts = []
    for offset in (0.3, 2.0, 10.0, 40.0, 150.0, 600.0):
        unit = np.array([1.0, 1.0, 1.0, 1.0, offset, 1.0])
        columns = [*_terms(unit, design, form), np.ones_like(e2e_s)]
        prefill, alpha, gamma, kv, fixed = nnls(
            np.stack(columns, axis=-1) / e2e_s[:, None], np.ones_like(e2e_s)
        )[0]
        small = 1e-3 * reference
        start = np.array(
            [
                1 / max(prefill, 1e-6),
                1 / max(kv, 1e-6),
                max(alpha, small[2]),
                max(gamma, small[3]),
                offset,
                max(fixed, small[5]),
            ]
        )
        starts.append(start)
    return starts


@dataclass(frozen=True)
class Slim:
    """The law as `servefit.laws` offers it.

    Attributes:
        decode_form: the reading of Eq. 9, ``"product"`` (default) or ``"sum"``.
        without: the term that an ablation leaves out.
    """

    decode_form: DecodeForm = "product"
    without: Without = "nothing"
    name: str = "slim"

    def fit(self, observations: Observations | StepObservations) -> Calibration:
        """Minimise sum(((T - T_pred) / T)^2) over the six parameters (Section VI).

        The throughput alone is fitted, as in the paper. Six deterministic starts; ties between
        values that the runs cannot tell apart (alpha and gamma, with one model) go to the
        minimum-norm solution about the reference values.

        Raises:
            ServefitError: fewer than two distinct points, or known and unknown peaks mixed.
        """
        if not isinstance(observations, Observations):
            raise ServefitError(NO_STEPS)
        require_distinct_points(observations, minimum=2)
        known = {h.has_known_peaks for h in observations.points.hardware}
        if len(known) > 1:
            raise ServefitError(
                "slim: some runs name a GPU with known peaks and some do not: fit them apart, or "
                "say what the unknown GPU is"
            )
        design = _design(observations.points, self.without)
        tokens = observations.points.batch * (
            observations.points.input_tokens + observations.points.output_tokens
        )
        measured_s = tokens / observations.total_tokens_per_s

        def predicted_s(theta: FloatArray) -> FloatArray:
            return _e2e_s(theta, design, self.decode_form)

        def ratio(theta: FloatArray) -> FloatArray:
            return measured_s / predicted_s(theta)

        def log_gradient(theta: FloatArray) -> FloatArray:
            first, decode = _gradients_s(theta, design, self.decode_form)
            return -(first + decode) / predicted_s(theta)[:, None]

        solution = fit_relative(
            PARAMETERS if known == {True} else _with_free_rates(PARAMETERS),
            _starts(design, measured_s, self.decode_form),
            ratio,
            log_gradient,
        )
        covariance = solution.log_covariance
        calibration = Calibration(
            law=self.name,
            parameters=solution.parameters,
            settings={"decode_form": self.decode_form, "without": self.without},
            log_covariance=None if covariance is None else tuple(map(tuple, covariance.tolist())),
            residual_sd=solution.residual_sd,
            degrees_of_freedom=solution.degrees_of_freedom,
            notes=_notes(solution),
        )
        answer = self.predict(calibration, observations.points)
        errors = run_mape_pct(answer, observations)
        return with_account(calibration, observations, solution.residuals, errors)

    def prior(self) -> Calibration:
        """SLIM has no prior: raises `ServefitError` with the reason."""
        raise ServefitError(
            "slim: has no prediction without data: its six parameters are calibrated from runs"
        )

    def predict(self, calibration: Calibration, points: Points) -> Prediction:
        """Eq. 5-12 with the calibration's parameters."""
        form, design = _as_fitted(calibration, points)
        theta = calibration.theta()
        prefill, dense, dense_scaled, kv = _terms(theta, design, form)
        decode = dense + dense_scaled + kv
        fixed = np.full_like(decode, theta[5])
        return prediction(
            points,
            terms_s={
                "prefill": prefill,
                "dense decode": dense + dense_scaled,
                "KV traffic": kv,
                "fixed": fixed,
            },
            prefill_s=prefill,
            decode_s=decode,
            ttft_s=fixed + prefill,
        )

    def predict_steps(self, calibration: Calibration, steps: EngineSteps) -> FloatArray:
        """SLIM has no step times: raises `ServefitError`."""
        raise ServefitError(NO_STEPS)

    def steps_spread(self, calibration: Calibration, steps: EngineSteps) -> Spread | None:
        """SLIM has no step times: raises `ServefitError`."""
        raise ServefitError(NO_STEPS)

    def spread(self, calibration: Calibration, points: Points) -> dict[str, Spread] | None:
        """Parameter covariance and residual spread, carried to E2E, TTFT and TPOT."""
        form, design = _as_fitted(calibration, points)
        first, decode = _gradients_s(calibration.theta(), design, form)
        answer = self.predict(calibration, points)
        return propagate(
            calibration,
            {
                "e2e_s": (first + decode) / answer.e2e_s[..., None],
                "ttft_s": first / answer.ttft_s[..., None],
                "tpot_s": decode / answer.decode_s[..., None],
            },
        )


def _as_fitted(calibration: Calibration, points: Points) -> tuple[DecodeForm, _Design]:
    """The reading of Eq. 9 and the terms that the calibration was fitted with.

    Raises:
        ServefitError: the calibration is damaged, or was fitted to rates where the points have
            efficiencies of known peaks, or the other way round.
    """
    require_parameters(calibration, [p.name for p in PARAMETERS])
    fitted_rates = calibration.parameters[0].unit == RATE_UNIT
    for hardware in points.hardware:
        if hardware.has_known_peaks == fitted_rates:
            raise ServefitError(
                f"slim: the peaks of {hardware.name} are "
                + (
                    "known, the fit is of a GPU whose peaks are not: its rates hold for that GPU "
                    "alone; ask about it with --gpu unknown"
                    if fitted_rates
                    else "unknown, the fit's efficiencies are shares of known peaks: name the GPU, "
                    "or fit runs of it with --gpu unknown"
                )
            )
    form = setting(calibration, "decode_form", DecodeForm, "product")
    without = setting(calibration, "without", Without, "nothing")
    return form, _design(points, without)


def _notes(solution: Solution) -> tuple[str, ...]:
    notes = []
    if solution.residual_sd is None:
        notes.append(
            f"{len(solution.residuals)} rows leave no residual degrees of freedom: standard "
            "errors and intervals are unknown"
        )
    free = [p.name for p in solution.parameters if not p.identified]
    if free:
        notes.append(
            f"not identified by these runs: {', '.join(free)}; their values are a tie-break "
            "(minimum norm), only their joint effect on these runs is known"
        )
    notes.extend(
        f"{p.name} is at its {p.at_bound} bound" for p in solution.parameters if p.at_bound
    )
    return tuple(notes)


def _with_free_rates(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Efficiencies of unknown peaks are rates in units of 1e12 per second: no ceiling of 1."""
    return tuple(
        replace(p, lower=1e-6, upper=1e6, unit=RATE_UNIT) if p.name.startswith("eta_") else p
        for p in parameters
    )
