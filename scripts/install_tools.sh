#!/bin/sh
# Installs the system packages that the compiler's checks and its tests use, if they are missing: g++, cmake and make
# build generated code, gcc brings the sanitizers, chromium opens the HTML reports, cppcheck counts deviations from
# MISRA C (scripts/misra.py). Needs Debian or Ubuntu for that; elsewhere it says what to install and goes on: the
# compiler works without them and says what it skipped.
set -u
missing=""
command -v arm-none-eabi-gcc >/dev/null 2>&1 || missing="$missing gcc-arm-none-eabi libnewlib-arm-none-eabi"
command -v qemu-system-arm >/dev/null 2>&1 || missing="$missing qemu-system-arm"
command -v gcc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
for tool in g++ cmake make chromium cppcheck; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "please install:$missing" >&2
    exit 0
fi
run=""
[ "$(id -u)" = 0 ] || run="sudo"
echo "installing:$missing"
$run apt-get update -qq && DEBIAN_FRONTEND=noninteractive $run apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    echo "could not install:$missing; going on without" >&2
