#!/bin/bash
reward=0
[ "$(cd /app/photos && stat -c '%n %s' * | LC_ALL=C sort | tr '\n' ,)" = '1.jpg 20,2.jpg 11,3.jpg 7,4.jpg 3,notes.txt 0,' ] && reward=1
echo $reward > /logs/verifier/reward.txt
