"""The tables of the tutorials, made by a rule from a fixed seed: python make_tables.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd


def credit(folder: Path, rng: np.random.Generator) -> None:
    """One spreadsheet export of loans: semicolons, decimal commas, missing values, an id."""
    n = 3000
    debt, age = rng.gamma(2.0, 0.2, n), rng.integers(21, 80, n)
    income = np.round(rng.lognormal(8.3, 0.5, n), 2)
    late, loans = rng.poisson(0.4, n), rng.poisson(8, n)
    risk = 1.6 * late + 2.0 * debt - 0.4 * (income / 4000) - 0.02 * (age - 50) + rng.normal(0, 1, n)
    table = pd.DataFrame(
        {
            "LoanId": np.arange(100001, 100001 + n),
            "DebtRatio": np.round(debt, 4),
            "Age": age,
            "MonthlyIncome": np.where(rng.random(n) < 0.15, np.nan, income),
            "OpenCreditLines": loans,
            "TimesLate": late,
            "Opened": pd.to_datetime("2015-01-01") + pd.to_timedelta(rng.integers(0, 2500, n), "D"),
            "SeriousDelinquency": (risk > np.quantile(risk, 0.85)).astype(int),
        }
    )
    table.to_csv(folder / "loans.csv", sep=";", decimal=",", index=False)


def nursery(folder: Path, rng: np.random.Generator) -> None:
    """One table of categories only, four classes of which one has two rows."""
    n = 2400
    family = rng.choice(["complete", "completed", "incomplete", "foster"], n)
    housing = rng.choice(["convenient", "less_conv", "critical"], n)
    finance = rng.choice(["convenient", "inconv"], n)
    social = rng.choice(["nonprob", "slightly_prob", "problematic"], n)
    health = rng.choice(["recommended", "priority", "not_recom"], n)
    points = (
        housing == "critical", finance == "inconv", social == "problematic", family == "foster",
        health == "priority",
    )  # fmt: skip
    need = np.sum(points, axis=0)
    rank = np.select(
        [health == "not_recom", need >= 3], ["not_recom", "spec_prior"], default="priority"
    ).astype(object)
    rank[rng.choice(np.flatnonzero(need == 0), 2, replace=False)] = "recommend"
    pd.DataFrame(
        {"family": family, "housing": housing, "finance": finance, "social": social,
         "health": health, "rank": rank}
    ).to_csv(folder / "applications.csv", index=False)  # fmt: skip


def vehicle(folder: Path, rng: np.random.Generator) -> None:
    """Two Parquet files of one camera each; the same vehicles by number, four kinds."""
    n = 900
    kind = rng.choice(["bus", "opel", "saab", "van"], n)
    centre = {k: rng.normal(0, 1.2, 12) for k in ("bus", "opel", "saab", "van")}
    shape = np.stack([centre[k] for k in kind]) + rng.normal(0, 1, (n, 12))
    number = [f"v{i:04d}" for i in range(n)]
    side = pd.DataFrame({"vehicle": number, "kind": kind})
    side = side.join(pd.DataFrame(shape[:, :6], columns=[f"side_{i}" for i in range(6)]))
    top = pd.DataFrame({"vehicle": number})
    top = top.join(pd.DataFrame(shape[:, 6:], columns=[f"top_{i}" for i in range(6)]))
    side.to_parquet(folder / "side.parquet", index=False)
    top.sample(frac=0.9, random_state=1).to_parquet(folder / "top.parquet", index=False)


def bank(folder: Path, rng: np.random.Generator) -> None:
    """Three parties: a bank's export, a shop's, a telco's; each calls its customers otherwise."""
    n = 1500
    ids = [f"K{i:05d}" for i in rng.permutation(n)]
    balance, visits, calls = rng.normal(size=n), rng.poisson(4, n), rng.gamma(2, 10, n)
    score = balance - 0.3 * visits + 0.03 * calls + rng.normal(0, 1, n)
    accounts = pd.DataFrame(
        {"Kunde": ids, "Saldo": np.round(1000 + 800 * balance, 2), "Alter": rng.integers(18, 90, n),
         "Region": rng.choice(["Nord", "Süd", "West"], n),
         "Ausfall": np.where(score < np.quantile(score, 0.3), "ja", "nein")}
    )  # fmt: skip
    shop = pd.DataFrame(
        {"Customer ID": ids, "visits": visits, "basket": np.round(rng.gamma(2, 20, n), 2)}
    )
    telco = pd.DataFrame(
        {"subscriber": ids, "minutes": np.round(calls, 1), "plan": rng.choice(["S", "M", "L"], n)}
    )
    accounts.to_csv(folder / "accounts.csv", sep=";", decimal=",", index=False, encoding="latin-1")
    shop.sample(frac=0.85, random_state=2).to_csv(folder / "shop.csv", index=False)
    telco.sample(frac=0.9, random_state=3).to_csv(folder / "telco.csv", sep="\t", index=False)


def scorecard(folder: Path, rng: np.random.Generator) -> None:
    """A bank's applicants and a bureau's records of the same people, a tenth of them missing."""
    n = 4000
    ids = [f"A{i:06d}" for i in rng.permutation(n)]
    income, tenure = rng.lognormal(8.0, 0.5, n), rng.exponential(6.0, n)
    used, asked, late = rng.beta(2, 3, n), rng.poisson(1.5, n), rng.poisson(0.4, n)
    risk = 2.5 * used + 0.9 * late + 0.3 * asked - 0.0003 * income - 0.05 * tenure
    risk += rng.normal(0, 1.2, n)
    applicants = pd.DataFrame(
        {"applicant": ids, "income": np.round(income, 2), "years_at_address": np.round(tenure, 1),
         "age": rng.integers(19, 80, n), "home": rng.choice(["own", "rent", "family"], n),
         "defaulted": np.where(risk > np.quantile(risk, 0.8), "yes", "no")}
    )  # fmt: skip
    records = pd.DataFrame(
        {"applicant": ids, "used_share": np.round(used, 3), "inquiries": asked, "late": late,
         "accounts": rng.poisson(7, n), "oldest_account": np.round(rng.gamma(3.0, 3.0, n), 1)}
    )  # fmt: skip
    applicants.to_csv(folder / "applicants.csv", index=False)
    records.sample(frac=0.9, random_state=4).to_csv(folder / "bureau.csv", index=False)


MAKERS = {
    "loans": credit, "applications": nursery, "vehicles": vehicle, "customers": bank,
    "scorecard": scorecard,
}  # fmt: skip


def make(folder: Path, names: tuple[str, ...] = tuple(MAKERS)) -> None:
    """Write the tables of these tutorials into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        MAKERS[name](folder, np.random.default_rng(0))


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
