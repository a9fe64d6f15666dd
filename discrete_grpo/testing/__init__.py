"""Conformance kit: laws that every policy must obey, tested by :func:`check_policy`.

The kit does not depend on a family of policies; it calls only the methods of :class:`~discrete_grpo.core.rollout.Policy` and
:class:`~discrete_grpo.core.rollout.Scorer`. ``docs/extending.md`` lists the laws, their measurements and the mistakes that they
catch.
"""

from discrete_grpo.testing.check import LAWS, check_policy
from discrete_grpo.testing.report import Report, Row

__all__ = ["LAWS", "Report", "Row", "check_policy"]
