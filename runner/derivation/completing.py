"""What each device holds of a sum, a maximum, … in; the collectives that put it together out."""

from __future__ import annotations

import ast

from runner.derivation.laying import Layouts, itemsize
from runner.derivation.rules import Choice
from runner.derivation.trees import built
from runner.programs.types import Typed
from runner.sharding import moves


class Completing(Layouts):
    """Writes the collectives with which an operation ends; `differentiated` is whether JAX takes a gradient."""

    differentiated = False

    def completed(self, tree: ast.expr, choice: Choice, typed: Typed) -> ast.expr:
        """What the devices hold of a sum, a maximum, … put together."""
        held = moves.local_bytes(self.mesh, typed.shape, itemsize(typed.dtype), choice.partial)
        scattered = list(choice.scattered)
        for kind, axes in choice.over.items():
            if scattered:
                for dimension, over in scattered:
                    n = self.mesh.axis_size(over)
                    tree = built(
                        "psum_scatter({x}, {over}, scatter_dimension={d}, tiled=True)", x=tree, over=over, d=dimension
                    )
                    if kind == "mean":
                        tree = built("{x} / {n}", x=tree, n=n)
                    self.spend((n - 1) / n * held)
                    held /= n
                scattered = []
            if axes:
                n = self.mesh.axis_size(axes)
                tree, factor = self._reduced(tree, kind, axes)
                self.spend(factor * held * (n - 1 if factor == 1 else (n - 1) / n))
        return tree

    def _reduced(self, tree: ast.expr, kind: str, axes: tuple[str, ...]) -> tuple[ast.expr, int]:
        gathered = "{f}(all_gather({x}, {over}, axis=0, to='invarying'), axis=0)"
        match kind:
            case "sum":
                return built("psum({x}, {over})", x=tree, over=axes), 2
            case "mean":
                return built("pmean({x}, {over})", x=tree, over=axes), 2
            case "any":
                return built("pmax(astype({x}, 'int32'), {over}) > 0", x=tree, over=axes), 2
            case "all":
                return built("pmin(astype({x}, 'int32'), {over}) > 0", x=tree, over=axes), 2
            case "max" | "min" if not self.differentiated:
                return built(f"p{kind}({{x}}, {{over}})", x=tree, over=axes), 2
            case _:
                # JAX has no derivative of pmax, and no product over devices.
                return built(gathered, f=ast.Name(kind), x=tree, over=axes), 1
