#!/bin/bash
set -eu
{
  echo "$RELEASE"
  cut -d' ' -f2 banner
  find /opt/parts -type f | wc -l
} > "$REPORT_DIR/release.txt"
