"""Delegation of a wrapper's attributes to the policy inside it, and the one-line ``repr`` of policies."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from torch import nn

__all__ = ["IfInner", "Inner", "network_size", "one_line"]

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class Inner(Generic[Value]):
    """Descriptor that reads and writes the attribute of the same name of ``self.policy``.

    A wrapper lists the attributes and methods that it passes on unchanged, and defines only those that differ. A wrapper lacks
    an attribute that the policy inside it lacks.

    >>> class Wrapper:
    ...     split = Inner()
    ...     def __init__(self, policy):
    ...         self.policy = policy
    >>> Wrapper("a b").split()
    ['a', 'b']
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, wrapper: None, owner: type) -> Inner[Value]: ...

    @overload
    def __get__(self, wrapper: Any, owner: type) -> Value: ...

    def __get__(self, wrapper: Any | None, owner: type) -> Value | Inner[Value]:
        return self if wrapper is None else getattr(wrapper.policy, self.name)

    def __set__(self, wrapper: Any, value: Value) -> None:
        setattr(wrapper.policy, self.name, value)


class IfInner(Generic[Arguments, Value]):
    """Decorator of a wrapper's method that exists only if ``self.policy`` has one of the same name.

    >>> class Wrapper:
    ...     def __init__(self, policy):
    ...         self.policy = policy
    ...     @IfInner
    ...     def upper(self):
    ...         return self.policy.upper() + "!"
    >>> Wrapper("a").upper(), hasattr(Wrapper(3), "upper")
    ('A!', False)
    """

    def __init__(self, method: Callable[Concatenate[Any, Arguments], Value]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any | None, owner: type) -> Callable[Arguments, Value]:
        if wrapper is None:
            return cast(Callable[Arguments, Value], self)
        getattr(wrapper.policy, self.name)
        return MethodType(self.method, wrapper)


def network_size(network: nn.Module) -> str:
    """Class of a network and its number of parameters.

    >>> network_size(nn.Linear(30, 50))
    'Linear of 1,550 parameters'
    """
    count = sum(p.numel() for p in network.parameters())
    return f"{type(network).__name__} of {count:,} parameters"


def one_line(policy: object, *facts: object) -> str:
    """Return the ``repr`` of a policy: its class name and its main settings, on one line.

    >>> one_line(nn.Identity(), "8 steps", "uniform noise")
    'Identity(8 steps, uniform noise)'
    """
    return f"{type(policy).__name__}({', '.join(map(str, facts))})"
