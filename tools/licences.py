#!/usr/bin/env python3
"""Checks that every crate we ship may be distributed under Apache-2.0.

Reads `cargo metadata`, evaluates each crate's SPDX expression against the list below and prints what
does not fit. Exit code 1 if anything does not.
"""

import json
import re
import subprocess
import sys

ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}


def evaluate(expression):
    """Whether an SPDX expression can be satisfied by allowed licences alone."""
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
            return token in ALLOWED
        result = alternatives()
        tokens.pop(0)
        return result

    return alternatives()


def main():
    command = ["cargo", "metadata", "--format-version=1", "--locked"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    refused = []
    for package in metadata["packages"]:
        expression = package["license"] or ""
        if not expression or not evaluate(expression):
            refused.append(f"{package['name']} {package['version']}: {expression or 'no licence named'}")
    if refused:
        print("These crates cannot be distributed under Apache-2.0:", *refused, sep="\n  ")
        return 1
    print(f"licences: {len(metadata['packages'])} crates, all distributable under Apache-2.0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
