#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test.sh [cmake option...]: installs what is missing, builds with warnings as errors and runs every
# test. With ATTN_ONNX_DIR set to a folder of ONNX node tests it runs those too.
set -euo pipefail

cd "$(dirname "$0")/.."
tools/setup.sh
tools/build.sh dev "$@"
tools/ctest.sh dev
