"""A finished audit that shows itself in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vflsec.audit import result
from vflsec.report.sanitize import clean
from vflsec.report.verdicts import format_headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Audit(result.Audit):
    """A finished audit that shows itself; attributes as of :class:`vflsec.audit.result.Audit`."""

    @property
    def verdict(self) -> str:
        """``PASS``, ``FAIL``, ``INCONCLUSIVE``, ``NO GATE``, ``NO RISE`` or ``UNFINISHED``."""
        return format_headline(self.found)[0]

    def plot(self, kind: str = "advantage_by_strength", *, dataset: str | None = None) -> Figure:
        """A figure of the audit.

        Args:
            kind: one of the functions of :mod:`vflsec.report.figures` that draw.
            dataset: which; None takes the first.

        Raises:
            ConfigError: there is no such figure or data set, or no attack ran.
        """
        from vflsec.core import check
        from vflsec.report import figures

        kinds: dict[str, Callable[..., Any]] = {
            f.__name__: f for f in (
                figures.advantage_by_strength, figures.privacy_utility, figures.attack_by_defense,
                figures.cost_utility_leakage, figures.leakage_over_epochs,
            )
        }  # fmt: skip
        draw = kinds[check.one_of("plot: kind", kind, kinds)]
        figure: Figure = draw(self.summary, dataset=dataset).figure
        return figure

    def __repr__(self) -> str:
        found, how = format_headline(self.found)
        return f"<Audit of {clean(self.found.name)}: {found}. {how} {len(self.rows)} rows>"

    def _repr_html_(self) -> str:
        from vflsec.report.build import build_report
        from vflsec.report.html import render_fragment
        from vflsec.report.tree import View

        return render_fragment(build_report(self.found, View.NOTEBOOK))
