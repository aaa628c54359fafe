"""Training view: what an update measured, as a line of text."""

from __future__ import annotations

from rljob_api.status import RoundReport


def training_summary(report: RoundReport) -> str | None:
    """Return entropy, KL divergences and clipped shares of the update; None without any.

    >>> training_summary(RoundReport(round=3, entropy=0.7123, reference_kl=0.0123, mismatch_kl=0.00031))
    'entropy 0.712, KL 0.0123 from the initial model, KL 0.00031 of engine and trainer'
    >>> training_summary(RoundReport(round=3, clip_fraction_low=0.0021, clip_fraction_high=0.0))
    'clipped 0.21 % low, 0 % high'
    """
    texts = (
        (report.entropy, "entropy {:.3g}"),
        (report.reference_kl, "KL {:.3g} from the initial model"),
        (report.mismatch_kl, "KL {:.3g} of engine and trainer"),
    )
    parts = [text.format(value) for value, text in texts if value is not None]
    clips = ((report.clip_fraction_low, "low"), (report.clip_fraction_high, "high"))
    clipped = [f"{100 * share:.3g} % {bound}" for share, bound in clips if share is not None]
    if clipped:
        parts.append(f"clipped {', '.join(clipped)}")
    return ", ".join(parts) or None
