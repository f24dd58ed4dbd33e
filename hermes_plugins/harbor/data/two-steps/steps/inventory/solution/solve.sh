#!/bin/bash
cd /app/photos && stat -c '%s %n' *.jpg | sort -rn > /app/inventory.txt
