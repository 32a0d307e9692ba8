"""A party's own model in a recording: as it was when training began, and as it is at the end."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from vflsec.core.view import Schema
from vflsec.trace.hash_chain import unwrap
from vflsec.trace.manifest import ModelFile
from vflsec.trace.module_spec import describe_module
from vflsec.trace.weights import write_weights

__all__ = ["OwnModel"]

_PREFIX = re.compile(r"(?:module|_orig_mod)\.")  # of weights in a wrapper


class OwnModel:
    """Weights of one module now and later.

    Args:
        folder: of the observer.
        party: whose model it is.
        module: from own rows to the embedding; wrappers that torch puts around are taken off.
        initial: its ``state_dict()`` before training, None if it is as that now.
        begun: messages were recorded before.
    """

    def __init__(
        self, folder: Path, party: str, module: nn.Module,
        initial: Mapping[str, Tensor] | None, *, begun: bool,
    ) -> None:  # fmt: skip
        self.folder, self.party, self.module = folder, party, unwrap(module)
        if initial is not None and begun and _lives(initial, self.module):
            initial = None
            warnings.warn(
                "vflsec.record: the initial weights are the model's own memory, as state_dict() "
                "returns it, so that they are what training made of them; left out. Give the "
                "model before training, record(..., model=bottom), or keep a copy of each tensor.",
                RuntimeWarning, stacklevel=4,
            )  # fmt: skip
        elif initial is None and not begun:
            initial = self.module.state_dict()
        place = self._place("initial")
        if initial is not None and not place.exists():  # of a run that goes on, the first one
            write_weights(place, _strip_names(initial, self.module))

    def _place(self, part: str) -> Path:
        return self.folder / f"model-train-{self.party}-{part}.safetensors"

    def saved(self, schema: Schema | None) -> list[ModelFile]:
        """Write the weights as they are now, and say which files there are."""
        write_weights(self._place("bottom"), self.module.state_dict())
        layers = describe_module(self.module, schema)
        if layers is None:
            warnings.warn(
                "vflsec.record: the layers of the model are not described in the trace, so name "
                f"its class in the audit: --model {self.party}=package.module:"
                f"{type(self.module).__name__} (docs/howto/own_model.md).",
                RuntimeWarning, stacklevel=6,
            )  # fmt: skip
        return [
            ModelFile(party=self.party, part=part, file=self._place(part).name, layers=layers)
            for part in ("bottom", "initial") if self._place(part).exists()
        ]  # fmt: skip


def _strip_names(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Weights by their names in the module, which may have a part that is called like a wrapper."""
    out, names = dict(state), module.state_dict().keys()
    while out and out.keys() != names and all(map(_PREFIX.match, out)):
        out = {k.partition(".")[2]: v for k, v in out.items()}
    return out


def _lives(state: Mapping[str, Tensor], module: nn.Module) -> bool:
    """Whether tensors are the very ones that a module trains."""
    trained = {p.data_ptr() for p in module.parameters() if p.requires_grad}
    return any(t.data_ptr() in trained for t in state.values())
