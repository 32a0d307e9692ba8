"""What an adversary has: tables by row, grants, and its own columns as numbers."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vflsec.core.shared_tables import as_bytes
from vflsec.core.view import Facts, Known, Need, Schema, Table, View, as_needs
from vflsec.errors import ThreatModelError


def table(rows: list[int], epochs: list[int] | None = None) -> Table:
    ids = torch.tensor(rows, dtype=torch.int64)
    epoch = torch.tensor(epochs or [0] * len(rows))
    return Table(ids.float().unsqueeze(1) * 10, ids, epoch, torch.arange(len(rows)))


def view(**changes: Any) -> View:
    x = torch.tensor([[0.5, 1.0], [1.5, 0.0], [2.5, 2.0]])
    schema = Schema(("age", "job"), (0, 3), (2,))
    linear = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    parts: dict[str, Any] = {
        "adversary": ("bank",),
        "columns": {"bank": x},
        "present": {"bank": torch.ones(3, dtype=torch.bool)},
        "schema": {"bank": schema},
        "tables": MappingProxyType({}),
        "models": {"bank": {"bottom": linear}},
        "facts": Facts("splitnn", "train", "shop", ("shop", "bank"), 2),
        "targets": {"train": torch.tensor([0, 1]), "test": torch.tensor([2])},
    }
    return View(**{**parts, **changes})


# Needs


@pytest.mark.parametrize(
    ("text", "kind", "sent", "grant", "form"),
    [
        ("gradient:mean", "gradient", False, False, "mean"),
        ("sent.embedding:last", "embedding", True, False, "last"),
        ("known_rows", "", False, True, ""),
        ("prior", "", False, True, ""),
        ("model", "", False, False, ""),
        ("parameter_gradient:all", "", False, False, "all"),
    ],
)
def test_needs_are_read(text: str, kind: str, sent: bool, grant: bool, form: str) -> None:
    need = Need.parse(text)
    assert (need.kind, need.sent, need.is_grant, need.form) == (kind, sent, grant, form)
    assert str(need) == text


def test_a_need_in_no_known_form() -> None:
    with pytest.raises(ThreatModelError, match="'mean', 'scaled', 'centred'"):
        Need.parse("gradient:every")


def test_needs_have_a_fixed_order() -> None:
    assert [str(n) for n in as_needs(frozenset({"prior", "gradient:all", "model"}))] == [
        "gradient:all",
        "model",
        "prior",
    ]


# Tables


def test_of_rows_in_the_order_asked() -> None:
    t = table([7, 2, 9])
    assert t.of_rows(torch.tensor([9, 7, 2])).flatten().tolist() == [90.0, 70.0, 20.0]
    assert t.of_rows(torch.tensor([2])).flatten().tolist() == [20.0]
    assert t.of_rows(torch.tensor([], dtype=torch.int64)).shape == (0, 1)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40, unique=True), st.randoms())
def test_of_rows_finds_every_row(rows: list[int], random: Any) -> None:
    asked = rows[: len(rows) // 2 + 1]
    random.shuffle(asked)
    found = table(rows).of_rows(torch.tensor(asked)).flatten().tolist()
    assert found == [10.0 * r for r in asked]


@pytest.mark.parametrize("asked", [[8], [7, 100], [0, 2], [-1]])
def test_of_rows_refuses_what_never_passed(asked: list[int]) -> None:
    with pytest.raises(ThreatModelError, match=r"^1 sample ids are in no"):
        table([7, 2, 9]).of_rows(torch.tensor(asked))


def test_of_rows_of_an_empty_table() -> None:
    with pytest.raises(ThreatModelError, match="2 sample ids are in no"):
        table([]).of_rows(torch.tensor([1, 2]))


def test_of_rows_does_not_choose_among_repeats() -> None:
    t = table([7, 2, 7], [0, 0, 1])
    assert t.of_rows(torch.tensor([2])).tolist() == [[20.0]]
    with pytest.raises(ThreatModelError, match="passed more than once"):
        t.of_rows(torch.tensor([2, 7]))
    assert t.take(t.epoch == 0).of_rows(torch.tensor([2, 7])).tolist() == [[20.0], [70.0]]


def test_take_by_mask_and_by_place() -> None:
    t = table([7, 2, 9], [0, 1, 2])
    for mask in (torch.tensor([True, False, True]), torch.tensor([0, 2])):
        part = t.take(mask)
        assert (len(part), part.rows.tolist(), part.epoch.tolist()) == (2, [7, 9], [0, 2])
        assert part.tensor.flatten().tolist() == [70.0, 90.0]


# Views


def test_received_and_sent_are_apart() -> None:
    tables = {
        ("received", "gradient", "mean", "bank"): table([1]),
        ("sent", "embedding", "last", "bank"): table([2]),
    }
    v = view(tables=MappingProxyType(tables))
    assert v.received("gradient").rows.tolist() == [1]
    assert v.sent("embedding").rows.tolist() == [2]
    with pytest.raises(ThreatModelError) as caught:
        v.received("gradient", "all")
    assert str(caught.value) == (
        "'gradient' in form 'all' received by 'bank' is not in this view, which has gradient "
        "(mean) received by bank, embedding (last) sent by bank. Declare the need in the attack."
    )
    with pytest.raises(ThreatModelError, match="sent by 'bank' is not in this view"):
        v.sent("gradient", "mean")
    with pytest.raises(ThreatModelError, match="received by 'shop' is not in this view"):
        v.received("gradient", party="shop")


def test_an_empty_view_says_so() -> None:
    with pytest.raises(ThreatModelError, match="which has no messages"):
        view().received("gradient")


def test_until_cuts_only_what_holds_all_epochs() -> None:
    tables = {
        ("received", "gradient", "all", "bank"): table([1, 1, 1], [0, 1, 2]),
        ("received", "gradient", "mean", "bank"): table([1], [2]),
    }
    whole = view(tables=MappingProxyType(tables))
    cut = whole.until(1)
    assert cut.received("gradient", "all").epoch.tolist() == [0, 1]
    assert len(cut.received("gradient", "mean")) == 1
    assert len(whole.received("gradient", "all")) == 3


def test_targets_of_every_split() -> None:
    assert sorted(view().target_rows.tolist()) == [0, 1, 2]


def test_known_rows_are_granted_or_not() -> None:
    for known in (None, Known(torch.tensor([], dtype=torch.int64), torch.tensor([]))):
        with pytest.raises(ThreatModelError, match="needs known_rows, not granted"):
            view(known=known).require_known()
    known = Known(torch.tensor([4, 5, 6]), torch.tensor([0, 1, 0]))
    assert replace(view(), known=known).require_known() is known
    assert known.of_class(0).tolist() == [4, 6]
    assert len(known.of_class(2)) == 0


def test_embed_is_the_own_model_without_gradient() -> None:
    h = view().embed(torch.tensor([2, 0]))
    assert h.tolist() == [[2.5, 4.0], [0.5, 2.0]]
    assert not h.requires_grad
    doubled = view(encoders={"bank": lambda x: 2 * x})
    assert doubled.embed(torch.tensor([0])).tolist() == [[1.0, 2.0]]


def test_design_of_the_view() -> None:
    assert view().design(torch.tensor([0, 2])).tolist() == [
        [0.5, 0.0, 1.0, 0.0],
        [2.5, 0.0, 0.0, 1.0],
    ]


# Schema


def test_design_is_numeric_columns_then_one_hot() -> None:
    schema = Schema(("job", "age", "town"), (2, 0, 3), (3,))
    x = torch.tensor([[1.0, 0.25, 0.0], [0.0, -4.0, 2.0]], dtype=torch.float64)
    found = schema.design(x)
    assert found.dtype == torch.float64
    assert found.tolist() == [[0.25, 0, 1, 1, 0, 0], [-4.0, 1, 0, 0, 0, 1]]
    assert (schema.numeric, schema.categorical) == ((1,), (0, 2))


def test_design_folds_many_codes() -> None:
    schema = Schema(("zip",), (1000,), (1,))
    found = schema.design(torch.tensor([[5.0], [69.0], [999.0]]), most=64)
    assert found.shape == (3, 64)
    assert found.argmax(1).tolist() == [5, 5, 999 % 64]
    assert found.sum(1).tolist() == [1, 1, 1]


def test_design_of_images_is_flat() -> None:
    x = torch.arange(24.0).reshape(2, 1, 3, 4)
    assert torch.equal(Schema((), (), (1, 3, 4)).design(x), x.reshape(2, 12))


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6.0, dtype=torch.float64).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(3.0, dtype=torch.float64),
        torch.zeros(3, 0),
        torch.ones(1, dtype=torch.float64).as_strided((1, 1), (0, 0)),  # as expanding leaves it
        torch.ones(1, dtype=torch.float64).expand(4, 2),
    ],
    ids=lambda x: f"{tuple(x.shape)} {x.stride()}",
)
def test_bytes_are_those_of_the_numbers_however_they_lie(x: torch.Tensor) -> None:
    assert bytes(as_bytes(x).tolist()) == x.numpy().tobytes()
