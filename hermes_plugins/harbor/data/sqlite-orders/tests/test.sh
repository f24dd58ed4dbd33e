#!/bin/bash
python3 -I /tests/check.py && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
