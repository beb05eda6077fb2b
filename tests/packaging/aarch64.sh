#!/bin/sh
# Compare every primitive of the CPU with the reference on an emulated aarch64 processor.
#
#   tests/packaging/aarch64.sh FOLDER [NAMES]
#
# It needs Debian on x86-64, debootstrap and qemu-user-static, and 2 GB in FOLDER. It runs as root,
# because debootstrap does. NAMES are beginnings of names of primitives. All take hours, because
# compilers are emulated, too.
set -eu
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
AT=$(cd "$1" && pwd)
shift
if ! test -e "$AT/ready"; then
    debootstrap --arch=arm64 --variant=minbase --include=python3 --foreign bookworm "$AT/root"
    for package in "$AT"/root/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$AT/root"; done
    python3 -m pip install --target "$AT/site" --only-binary=:all: --no-compile \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
        --python-version 3.11 --implementation cp \
        h5py llvmlite numba numpy psutil pydantic pyfftw rich ruamel.yaml safetensors scipy \
        threadpoolctl typer hypothesis pytest
    touch "$AT/ready"
fi
PYTHONPATH=$ROOT:$ROOT/tests/support:$AT/site XDG_CACHE_HOME=$AT/cache OMP_NUM_THREADS=1 \
    exec qemu-aarch64-static -L "$AT/root" "$AT/root/usr/bin/python3.11" -u \
    "$ROOT/tests/support/every_cpu_primitive.py" "$@"
