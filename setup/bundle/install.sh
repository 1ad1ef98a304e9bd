#!/bin/sh
# Install hvscale from this bundle, without a network and without root:
#
#     ./install.sh PREFIX
#
# PYTHON names the interpreter that has PyTorch, or any if the bundle contains PyTorch:
# PYTHON=/opt/python/bin/python3 ./install.sh PREFIX.
# ./install.sh --help lists the options.
set -eu

here=$(cd "$(dirname "$0")" && pwd -P)
wanted=$(cat "$here/PYTHON_VERSION")

is_wanted() {
    [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$wanted" ]
}

if [ -n "${PYTHON:-}" ]; then
    if ! command -v "$PYTHON" >/dev/null; then
        echo "hvscale set-up: PYTHON=$PYTHON: no such program; set it to a Python $wanted" >&2
        exit 2
    fi
    if ! is_wanted "$PYTHON"; then
        found=$("$PYTHON" --version 2>&1 || true)
        echo "hvscale set-up: this bundle is for Python $wanted, but $PYTHON is ${found:-no working Python}:" \
            "set PYTHON to a Python $wanted, or make a bundle with make bundle BUNDLE_PYTHON=..." >&2
        exit 2
    fi
    python=$PYTHON
else
    python=
    for candidate in python3 "python$wanted" python; do
        if is_wanted "$candidate"; then
            python=$candidate
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "hvscale set-up: this bundle is for Python $wanted, and PATH has none: load its module or set" \
            "PYTHON=/path/to/python$wanted, or make a bundle for another Python with make bundle BUNDLE_PYTHON=..." >&2
        exit 2
    fi
fi

# -E: PYTHONPATH must not replace the installer's modules. -B: the bundle may be read-only.
exec "$python" -E -B "$here/installer/setup/install_bundle.py" "$@"
