#!/bin/sh
# A sweep with s5cmd: list everything, keep the keys whose epoch is at or below the watermark, remove these.
# Run as: s5cmd_filter.sh rm|run S5CMD BUCKET PREFIX WATERMARK; the endpoint is in S3_ENDPOINT_URL. Keys hold no blanks.
# `rm` gets a thousand keys at a time and deletes them in one request; `run` gets a line for each and sends them one by one,
# many at once.
set -eu
garbage() {
    "$1" ls --show-fullpath "s3://$2/$3*" |
        awk -F/ -v m="$4" 'length($(NF-1)) == 18 && length($NF) == 36 && $(NF-1) + 0 <= m + 0'
}
how=$1
shift
case $how in
rm) garbage "$@" | xargs -n 1000 "$1" --log error rm --raw ;;
run) garbage "$@" | sed 's/^/rm /' | "$1" --log error run ;;
esac
