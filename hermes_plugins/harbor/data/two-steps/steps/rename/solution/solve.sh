#!/bin/bash
cd /app/photos || exit
n=0
while read -r _ name; do
  n=$((n + 1))
  mv "$name" "$n.jpg"
done < /app/inventory.txt
