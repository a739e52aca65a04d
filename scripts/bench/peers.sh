#!/bin/sh
# llmq beside llama.cpp and OpenVINO GenAI on this machine: see peers.py, which measures.
exec python3 "$(dirname "$0")/peers.py" "$@"
