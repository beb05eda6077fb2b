#!/bin/sh
# Test znni on an emulated aarch64 processor.
#
#   tests/packaging/aarch64.sh FOLDER primitives [NAMES]   every CPU primitive, against the reference
#   tests/packaging/aarch64.sh FOLDER tests [PIECES]       the quick tests
#
# It needs Debian on x86-64, debootstrap, qemu-user-static and uv (make quick installs it in
# .venv/bin), and 3 GB in FOLDER. The first call
# fills FOLDER; it runs as root, because debootstrap does. NAMES are beginnings of names of
# primitives. PIECES are folders or files of tests; without any, the lines of tests/quick.txt. The
# result of each piece lies in FOLDER/results. A later call goes on with the pieces that have none.
# All take hours, because compilers are emulated, too. Tests that draw examples draw few.
set -eu
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1/hook" "$1/results"
AT=$(cd "$1" && pwd)
WHAT=$2
shift 2
if ! test -e "$AT/ready"; then
    for tool in debootstrap qemu-aarch64-static uv; do
        command -v "$tool" > /dev/null || { echo "$tool is not installed" >&2; exit 2; }
    done
    rm -rf "$AT/root" "$AT/site"  # of a call that was stopped
    debootstrap --arch=arm64 --variant=minbase --include=python3 --foreign bookworm "$AT/root"
    for package in "$AT"/root/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$AT/root"; done
    uv pip install --target "$AT/site" --only-binary :all: --python-version 3.11 \
        --python-platform aarch64-manylinux_2_28 --constraint "$ROOT/requirements.lock" \
        --requirements "$ROOT/pyproject.toml" --extra test
    touch "$AT/ready"
fi
# Tests start Python by its path in sys.executable. The kernel cannot run that of the root.
cat > "$AT/python" <<END
#!/bin/sh
export PYTHONPATH="$AT/hook:$ROOT:$ROOT/tests/support:$AT/site:\${PYTHONPATH-}"
export PYTHONPYCACHEPREFIX="$AT/bytecode" XDG_CACHE_HOME="\${XDG_CACHE_HOME-$AT/cache}"
exec qemu-aarch64-static -L "$AT/root" "$AT/root/usr/bin/python3.11" "\$@"
END
chmod +x "$AT/python"
echo "import sys; sys.executable = '$AT/python'" > "$AT/hook/sitecustomize.py"
cd "$ROOT"
case $WHAT in
primitives) exec "$AT/python" -u tests/support/every_cpu_primitive.py "$@" ;;
tests) ;;
*) echo "say primitives or tests, not $WHAT" >&2; exit 2 ;;
esac
# shellcheck disable=SC2046  # one argument a line
test $# -gt 0 || set -- $(cat tests/quick.txt)
failed=0
for piece; do
    result=$AT/results/$(echo "$piece" | tr / -).txt
    if ! test -e "$result"; then
        code=0
        "$AT/python" -m pytest -m 'not slow' -p few_examples -p no:cacheprovider --durations 5 \
            "$piece" > "$result.part" 2>&1 || code=$?
        test "$code" != 5 || code=0  # all is skipped, for want of PyTorch
        echo "exit code $code" >> "$result.part"
        mv "$result.part" "$result"
    fi
    echo "$piece: $(tail -n 2 "$result" | tr '\n' ' ')"
    test "$(tail -n 1 "$result")" = "exit code 0" || failed=1
done
exit $failed
