"""A base class of modules, as in Equinox: a subclass is a pytree whose leaves are its fields."""

import dataclasses
from typing import Any, cast, dataclass_transform

import jax


@dataclass_transform()
class _Registering(type):
    def __new__(cls, name, bases, attributes):
        made: Any = dataclasses.dataclass(cast("type", super().__new__(cls, name, bases, attributes)))
        names = [field.name for field in dataclasses.fields(made)]

        def flatten(module):
            return [getattr(module, name) for name in names], None

        def flatten_with_keys(module):
            return [(jax.tree_util.GetAttrKey(name), getattr(module, name)) for name in names], None

        jax.tree_util.register_pytree_with_keys(
            made, flatten_with_keys, lambda _, leaves: made(*leaves), flatten_func=flatten
        )
        return made


class Module(metaclass=_Registering):
    """The base class of modules."""
