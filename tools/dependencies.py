#!/usr/bin/env python3
"""Checks what the program is made of: licences, banned crates, duplicate versions and security advisories.

Reads deny.toml, as cargo-deny does, and `cargo metadata`. Advisories need a copy of the RustSec database
(github.com/rustsec/advisory-db): $RUSTSEC_DB names its directory, and those of cargo-audit and cargo-deny are looked for.
Without one the check says so in capitals; with --require-advisories it fails.

--reminder prints only whether advisories were checked, for the end of a long log.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def licence_fits(expression, allowed):
    """Whether an SPDX expression can be satisfied by allowed licences alone.

    >>> licence_fits("MIT/Apache-2.0", {"MIT"}), licence_fits("GPL-3.0 OR (MIT AND ISC)", {"MIT", "ISC"})
    (True, True)
    >>> licence_fits("MIT AND GPL-3.0", {"MIT"}), licence_fits("", {"MIT"})
    (False, False)
    """
    # Old manifests write `/` where SPDX says OR; an exception only ever grants more.
    expression = re.sub(r"\s+WITH\s+[\w.-]+", "", expression.replace("/", " OR "))
    tokens = re.findall(r"\(|\)|[\w.+-]+", expression)

    def alternatives():
        result = conjunction()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = conjunction() or result
        return result

    def conjunction():
        result = term()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = term() and result
        return result

    def term():
        token = tokens.pop(0)
        if token != "(":
            return token in allowed
        result = alternatives()
        tokens.pop(0)
        return result

    return bool(tokens) and alternatives()


def version(text):
    """A version as something that compares: a pre-release comes before its release.

    >>> version("1.2.3-rc.1") < version("1.2.3") < version("1.10") < version("2")
    True
    """
    text = text.strip().split("+")[0]
    numbers, _, pre = text.partition("-")
    parts = [int(part) for part in numbers.split(".")]
    pre = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".")) if pre else ((2, 0, ""),)
    return (*(parts + [0, 0])[:3], pre)


def matches(requirement, candidate):
    """Whether a version fits a requirement as Cargo writes them.

    >>> matches(">= 1.2, < 2", "1.9.0"), matches("^0.3.1", "0.3.9"), matches("^0.3.1", "0.4.0")
    (True, True, False)
    >>> matches("~1.4", "1.4.9"), matches("~1.4", "1.5.0"), matches("1.2", "1.9.0"), matches("= 1.2.3", "1.2.3")
    (True, False, True, True)
    """
    have = version(candidate)
    for part in requirement.split(","):
        operator, wanted = re.fullmatch(r"\s*(>=|<=|>|<|=|\^|~|)\s*(\S+)\s*", part).groups()
        if wanted == "*":
            continue
        low = version(wanted)
        given = len(wanted.split("-")[0].split("."))
        # The first number that may not change: the first that is not zero for ^, the second for ~.
        fixed = next((at for at in range(3) if low[at] or at + 1 == given), 2) if operator in ("^", "") else min(given, 2) - 1
        fits = {
            ">=": have >= low, "<=": have <= low, ">": have > low, "<": have < low, "=": have == low,
        }.get(operator, have >= low and have[: fixed + 1] == low[: fixed + 1])
        if not fits:
            return False
    return True


def duplicates(packages, skipped):
    """Versions beside a newer one that nobody excused, and excuses that nobody needs.

    >>> duplicates([("a", "1.0.0"), ("a", "2.0.0"), ("b", "1.0.0")], {})
    (['a 1.0.0 is there beside 2.0.0'], [])
    >>> duplicates([("a", "1.0.0"), ("a", "2.0.0")], {"a@1.0.0", "c@1.0.0"})
    ([], ['c@1.0.0'])
    """
    by_name = {}
    for name, number in packages:
        by_name.setdefault(name, set()).add(number)
    found, used = [], set()
    for name, numbers in sorted(by_name.items()):
        *older, newest = sorted(numbers, key=version)
        for number in older:
            if f"{name}@{number}" in skipped:
                used.add(f"{name}@{number}")
            else:
                found.append(f"{name} {number} is there beside {newest}")
    return found, sorted(set(skipped) - used)


def affects(advisory, number):
    """Whether an advisory speaks of a version.

    >>> affects({"versions": {"patched": [">= 1.2.3"], "unaffected": ["< 1.0"]}}, "1.1.0")
    True
    >>> affects({"versions": {"patched": [">= 1.2.3"]}}, "1.2.3"), affects({"versions": {"patched": []}}, "9.0.0")
    (False, True)
    """
    safe = advisory["versions"].get("patched", []) + advisory["versions"].get("unaffected", [])
    return not any(matches(requirement, number) for requirement in safe)


def read_advisory(text):
    """The front matter of an advisory.

    >>> read_advisory('```toml\\n[advisory]\\nid = "X"\\n```\\n# Title')
    {'advisory': {'id': 'X'}}
    """
    return tomllib.loads(re.match(r"```toml\n(.*?)\n```", text, re.DOTALL).group(1))


def database():
    """Where a copy of the RustSec database is, or None."""
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    named = os.environ.get("RUSTSEC_DB")
    places = [Path(named)] if named else [cargo / "advisory-db", *sorted((cargo / "advisory-dbs").glob("*"))]
    return next((place for place in places if (place / "crates").is_dir()), None)


def advisories(packages, place, ignored):
    """What the database says about our versions, and how many advisories it has."""
    total = sum(1 for _ in place.glob("crates/*/RUSTSEC-*.md"))
    found = []
    for name, number in sorted(set(packages)):
        for path in sorted(place.glob(f"crates/{name}/RUSTSEC-*.md")):
            entry = read_advisory(path.read_text())
            head = entry["advisory"]
            if "withdrawn" not in head and head["id"] not in ignored and affects(entry, number):
                found.append(f"{name} {number}: {head['id']} ({head.get('informational', 'vulnerability')})")
    return found, total


def newest(place):
    """The date of the database's last change, as far as it is known."""
    shown = subprocess.run(["git", "-C", place, "log", "-1", "--format=%cs"], capture_output=True, text=True)
    return shown.stdout.strip() or "an unknown day"


def main(arguments):
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    platform = rules["graph"]["targets"][0]
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", platform]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    used = {node["id"] for node in metadata["resolve"]["nodes"]}
    crates = [package for package in metadata["packages"] if package["id"] in used]
    versions = [(package["name"], package["version"]) for package in crates]
    reminder = "--reminder" in arguments
    problems = []
    if not reminder:
        allowed = set(rules["licenses"]["allow"])
        for package in crates:
            expression = package["license"] or ""
            if not licence_fits(expression, allowed):
                problems.append(f"licence: {package['name']}: {expression or 'none named'} does not fit Apache-2.0")
        banned = {entry["crate"]: entry["reason"] for entry in rules["bans"]["deny"]}
        problems += [f"banned: {name}: {banned[name]}" for name, _ in versions if name in banned]
        doubled, stale = duplicates(versions, {entry["crate"] for entry in rules["bans"]["skip"]})
        problems += [f"duplicate: {what}" for what in doubled]
        problems += [f"deny.toml excuses {what}, which is not there twice" for what in stale]
        print(f"dependencies: {len(crates)} crates, licences, bans and duplicates checked")
    place = database()
    if place:
        ignored = {entry if isinstance(entry, str) else entry["id"] for entry in rules["advisories"]["ignore"]}
        found, total = advisories(versions, place, ignored)
        problems += [f"advisory: {what}" for what in found]
        print(f"advisories: {len(crates)} crates checked against {total} advisories of {newest(place)}")
    else:
        print("ADVISORIES WERE NOT CHECKED: there is no RustSec database here (RUSTSEC_DB names a directory;")
        print("git clone https://github.com/rustsec/advisory-db ~/.cargo/advisory-db makes one)")
        if "--require-advisories" in arguments:
            problems.append("advisories: there is no database")
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
