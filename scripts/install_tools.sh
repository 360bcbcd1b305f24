#!/bin/sh
# Installs the system packages that the compiler's checks and its tests use, if they are missing: g++, cmake and make
# build generated code, gcc brings the sanitizers, chromium opens the HTML reports, cppcheck counts deviations from
# MISRA C, espeak-ng speaks in examples/wakeword (make test-more, make docs). With RISCV=1 in the environment also those for
# RISC-V, which take 1.4 GB. Needs Debian or Ubuntu for that; elsewhere it says what to install and goes on: the compiler
# works without them and says what it skipped.
set -u

# Installs packages all at once or, if one of them is not to be had, none.
install() {
    [ $# -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "please install: $*" >&2
        return 0
    fi
    run=""
    [ "$(id -u)" = 0 ] || run="sudo"
    echo "installing: $*"
    $run apt-get update -qq && DEBIAN_FRONTEND=noninteractive $run apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        echo "could not install: $*; going on without" >&2
}

missing=""
command -v arm-none-eabi-gcc >/dev/null 2>&1 || missing="$missing gcc-arm-none-eabi libnewlib-arm-none-eabi"
command -v qemu-system-arm >/dev/null 2>&1 || missing="$missing qemu-system-arm"
command -v gcc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
for tool in g++ cmake make; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing python3-venv"
if [ "${RISCV:-}" = 1 ]; then
    command -v riscv64-unknown-elf-gcc >/dev/null 2>&1 || missing="$missing gcc-riscv64-unknown-elf"
    [ -d /usr/lib/picolibc/riscv64-unknown-elf ] || missing="$missing picolibc-riscv64-unknown-elf"
    command -v qemu-system-riscv32 >/dev/null 2>&1 || missing="$missing qemu-system-misc"
fi
# shellcheck disable=SC2086  # one word a package
install $missing
for tool in chromium cppcheck espeak-ng; do # by themselves: Ubuntu has no chromium package, which must not keep QEMU out
    command -v "$tool" >/dev/null 2>&1 || install "$tool"
done
