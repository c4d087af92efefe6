#!/bin/sh
# sh requirements/make_venv.sh FOLDER [PYTHON]: a virtual environment with pip, of a Python that slime runs on: the one that
# is named, or the first that is here, or one that uv fetches, which pip fetches itself where it is not here.
set -eu
case $1 in /*) folder=$1 ;; *) folder=$PWD/$1 ;; esac
shift
fits() { "$1" -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2> /dev/null; }
named=$#
[ "$named" -gt 0 ] || set -- python3.11 python3 python3.12 python3.13
for python in "$@"; do
  if fits "$python"; then
    exec "$python" -m venv --clear "$folder"
  fi
done
if [ "$named" -gt 0 ]; then
  echo "slime: $1 is no Python 3.11 to 3.13 with venv. Name another one (PYTHON=...), or none." >&2
  exit 2
fi
uv=$(command -v uv) || {
  python3 -m venv --clear "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check 'uv==0.13.9' \
    && mv "$folder/bin/uv" "$folder.uv" && uv=$folder.uv
} > /dev/null 2>&1 || uv=
code=0
[ -n "$uv" ] && "$uv" venv --quiet --clear --seed --python 3.11 "$folder" 2> /dev/null || code=2
rm -f "$folder.uv"
if [ $code -ne 0 ]; then
  rm -rf "$folder"
  echo "slime: needs Python 3.11, 3.12 or 3.13 with venv (python3 here is $(python3 -V 2>&1)), and uv could not fetch one." \
    "Install one, such as 'apt-get install python3.11-venv', or name it: PYTHON=/path/to/python3.12." >&2
fi
exit $code
