"""Versions of installed packages, without importing them."""

from __future__ import annotations


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """Returns the commit of the current folder, with "-dirty" where it has changes; None without git or a commit."""
    import subprocess

    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
