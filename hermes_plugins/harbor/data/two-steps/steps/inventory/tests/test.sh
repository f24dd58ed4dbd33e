#!/bin/bash
reward=0
printf '20 IMG_20.jpg\n11 IMG_11.jpg\n7 IMG_7.jpg\n3 IMG_3.jpg\n' | cmp -s - /app/inventory.txt && reward=1
echo $reward > /logs/verifier/reward.txt
