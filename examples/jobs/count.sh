#!/usr/bin/env bash
# Count the pictures of a dataset: a job can be any program.
#
#     edgeloop run count.sh --data working/faces64 -- data/working/faces64
set -euo pipefail
folder=${1:-data/working/faces64}
faces=$(find -L "$folder" -name '*_seg.png' | wc -l)
echo "$faces faces in $folder"
echo "{\"faces\": $faces}" >> "$EDGELOOP_OUTPUT_DIR/metrics.jsonl"
find -L "$folder" -name '*.png' | sort > "$EDGELOOP_OUTPUT_DIR/files.txt"
