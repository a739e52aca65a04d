#!/bin/sh
# Checks that the C sources are as clang-format leaves them, or with --fix makes them so.
# Versions differ in what they make of a file: only clang-format 14 counts (tests/e2e/requirements.txt brings it
# to .venv). Without it this says so and fails nothing.
# usage: scripts/ci/format.sh [--fix]     (make format-check, make format)
set -eu
cd "$(dirname "$0")/../.."
for tool in .venv/bin/clang-format clang-format-14 clang-format; do
    command -v "$tool" >/dev/null && "$tool" --version | grep -q 'version 14\.' && break
    tool=
done
[ -n "$tool" ] || {
    echo "skipped: no clang-format 14 (pip install clang-format==14.0.6)"
    exit 0
}
git rev-parse --git-dir >/dev/null 2>&1 || {
    echo "skipped: no git here to list the sources"
    exit 0
}
files=$(git ls-files -- '*.c' '*.h' '*.cu' '*.cuh' '*.cc')
# shellcheck disable=SC2086 # a list of files
case ${1:-} in
--fix) "$tool" -i $files ;;
*) "$tool" --dry-run --Werror $files ;;
esac
echo "format: $(echo "$files" | wc -l) files"
