"""A conformance kit: the laws that any policy must obey, run on yours by :func:`check_policy`.

It knows no family of policies, only the methods of :class:`~discrete_grpo.core.rollout.Policy` and
:class:`~discrete_grpo.core.rollout.Scorer`. ``docs/extending.md`` lists the laws, what each measures and which mistake it
catches.
"""

from discrete_grpo.testing.check import LAWS, check_policy
from discrete_grpo.testing.report import Report, Row

__all__ = ["LAWS", "Report", "Row", "check_policy"]
