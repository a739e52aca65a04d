#!/bin/sh
# The command `llmq` of the npm package: the program for this machine's processor.
here=$(dirname "$(readlink -f "$0")")
exec "$here/$(uname -m)/llmq" "$@"
