"""Tuples of arrays by reference: a kernel hands what it was given on as one pointer.

A world is forty arrays of seven words each. Handed on by value they were a fifth of the time of compilation and a
third of the time of a run; by reference they are one word. A reference reads like the tuple: `v.head[0]`.
"""

from typing import Any

from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, register_model

__all__ = ["ref"]

# Any: numba has no types.
_base: Any = types.Type
_model: Any = models.PrimitiveModel
_template: Any = AttributeTemplate
_lower: Any = lower_getattr_generic
_register: Any = register_model
_infer: Any = infer_getattr
_borrowed: Any = impl_ret_borrowed
_ir: Any = cgutils


class _Ref(_base):  # type: ignore[misc]
    """Numba's type of a reference to a named tuple."""

    def __init__(self, pointee: Any) -> None:
        self.pointee = pointee
        super().__init__(name=f"Ref({pointee})")


class _RefModel(_model):  # type: ignore[misc]
    def __init__(self, manager: Any, ref_type: _Ref) -> None:
        super().__init__(manager, ref_type, manager.lookup(ref_type.pointee).get_value_type().as_pointer())


class _Fields(_template):  # type: ignore[misc]
    key = _Ref

    def generic_resolve(self, ref_type: _Ref, name: str) -> Any:
        """Returns the type of a field; of a tuple in the tuple, a reference to it."""
        if name not in ref_type.pointee.fields:
            return None
        field = ref_type.pointee.types[ref_type.pointee.fields.index(name)]
        return _Ref(field) if isinstance(field, types.BaseNamedTuple) else field


def _field(context: Any, builder: Any, ref_type: _Ref, pointer: Any, name: str) -> Any:
    index = ref_type.pointee.fields.index(name)
    field = ref_type.pointee.types[index]
    at = _ir.gep_inbounds(builder, pointer, 0, index)
    if isinstance(field, types.BaseNamedTuple):
        return at
    return _borrowed(context, builder, field, builder.load(at))


def _same(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001  # numba's signature
    return arguments[0]


def _on_stack(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
    return _ir.alloca_once_value(builder, arguments[0])


def _resolve(typing_context: Any, value: Any) -> tuple[Any, Any]:  # noqa: ARG001
    """Returns a reference to a named tuple; a reference stays what it is.

    It lies in the frame of the function that makes it and owns nothing: the arrays must be kept by somebody else while
    it is in use, as those of an argument are by the caller. Never return one.
    """
    if isinstance(value, _Ref):
        return value(value), _same
    return _Ref(value)(value), _on_stack


_register(_Ref)(_RefModel)
_infer(_Fields)
_lower(_Ref)(_field)
ref: Any = intrinsic(_resolve)
